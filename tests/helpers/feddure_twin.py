"""Rounds of FedDure on the model of linear.py, in NumPy: Eq. 1 to 12 of its paper one after another, row by row.

Every gradient is one of differences. That of F-reg is the change of the labeled loss with w in Eq. 7, through the step
of Eq. 6; the gradients of single rows in that step depend on phi alone.
"""

import dataclasses

import numpy as np

from semisfl_jax.core import rng
from tests.helpers import linear, linear_local
from tests.helpers.linear import factor
from tests.helpers.linear_local import softmax

MODEL = ('bottom', 'top')


def weigh(w, probabilities):
    """F-reg: one hidden layer of ReLU, a sigmoid."""
    hidden = np.maximum(probabilities @ w['hidden.kernel'] + w['hidden.bias'], 0)
    return 1 / (1 + np.exp(-(hidden @ w['out.kernel'] + w['out.bias'])[:, 0]))


def numbers(fine, client):
    """The F-reg of a client, its arrays by name, in float64."""
    return {f'{a}.{b}': np.asarray(fine[a][b][client], np.float64) for a in fine for b in fine[a]}


def rows_by_row(function, x, step=1e-5):
    """The derivative of an array [R] of numbers by an array: [R, *x.shape]."""
    found = np.zeros((len(function(x)), *x.shape))
    for place in np.ndindex(x.shape):
        aside = np.zeros_like(x)
        aside[place] = step
        found[:, *place] = (function(x + aside) - function(x - aside)) / (2 * step)
    return found


class Server(linear_local.Server):
    """The server of FedDure, and what its clients keep."""

    def __init__(self, key, h, student, fine):
        super().__init__('feddure', key, h, student, ())
        self.fine = [numbers(fine, client) for client in range(h.num_clients)] if fine else None

    def run_round(self, federation, ids, visits, k_s):
        found = super().run_round(federation, ids, visits, k_s)
        for kind in ('right', 'wrong'):
            found[f'weight_{kind}'] = found.pop(f'{kind}_weight') / found.pop(kind)
        return found

    def optimizers(self, names, rate=1.0, weight_decay=0.0):
        h = dataclasses.replace(self.h, weight_decay=weight_decay)
        return {name: linear.Sgd(h, rate * self.lr) for name in names}

    def train(self, federation, client, rows, known):
        h, o, key = self.h, self.h.options, rng.fold(self.key, 'local', self.round, client)
        theta, phi = dict(self.student), {name: self.student[name] for name in MODEL}
        sgd = self.optimizers(MODEL, weight_decay=h.weight_decay)
        coarse_sgd = self.optimizers(MODEL, o.coarse_rate)
        fine_sgd = self.optimizers(self.fine[client], o.fine_rate) if o.fine else {}
        sums = dict.fromkeys(('right', 'wrong', 'right_weight', 'wrong_weight'), 0.0)
        losses, effects = [], []
        for t, (read, labeled) in enumerate(zip(rows, known, strict=True)):
            images, truth, step_key = federation.client_images[read], federation.client_labels[read], rng.fold(key, t)
            p = softmax(self.logits(theta, self.pixels('weak', rng.fold(step_key, 'weak'), images)))
            labels, sure = p.argmax(axis=1), (p.max(axis=1) >= h.threshold).astype(float)
            x, d = self.views_of(images, labeled, step_key), 0.0
            if labeled.any():
                before = phi if o.coarse else {name: theta[name] for name in MODEL}
                batch = Batch(self, x, truth, labels, h.labeled_rows, step_key)
                gradients = batch.gradients(before)
                factors = sure[h.labeled_rows :]
                if o.fine:
                    w, seen = self.fine[client], softmax(batch.logits(before, 'unlabeled'))
                    gradient = self.fine_gradient(w, seen, gradients, before, batch)
                    self.fine[client] = w = {name: fine_sgd[name].step(w[name], gradient[name]) for name in w}
                    factors = weigh(w, seen)
                if o.coarse:
                    phi = {
                        name: coarse_sgd[name].step(before[name], np.tensordot(factors, g, axes=1) / len(factors))
                        for name, g in gradients.items()
                    }
                    d = batch.labeled_loss(before) - batch.labeled_loss(phi)
            effects.append(d)

            y, dropout = x @ theta['bottom'], [factor(rng.fold(step_key, 'dropout', piece)) for piece in MODEL]
            m = weigh(self.fine[client], softmax(self.train_logits(y, theta['top'], dropout))) if o.fine else sure
            own = np.where(labeled, truth, labels)
            weight = labeled / max(labeled.sum(), 1) + h.consistency_weight * (m + d) * ~labeled / (~labeled).sum()

            def loss(y, top, own=own, weight=weight, dropout=dropout):
                return weight @ linear.cross_entropies(self.train_logits(y, top, dropout), own)

            losses.append(loss(y, theta['top']))
            of_y, of_top = linear.gradients_of(loss, [y, theta['top']])
            theta['mean'] = 0.9 * theta['mean'] + 0.1 * y.mean(axis=0)
            for name, gradient in (('bottom', x.T @ of_y), ('top', of_top)):
                theta[name] = sgd[name].step(theta[name], gradient)
            for row in np.flatnonzero(~labeled):
                kind = 'right' if labels[row] == truth[row] else 'wrong'
                sums[kind], sums[f'{kind}_weight'] = sums[kind] + 1, sums[f'{kind}_weight'] + m[row]
        found = {'loss_local': np.mean(losses)} | ({'coarse_effect': np.mean(effects)} if o.coarse else {})
        return theta, found | sums

    def fine_gradient(self, w, seen, gradients, phi, batch):
        """By the arrays of w: the labeled loss after the virtual step (Eq. 6, 7)."""

        def loss(w):
            factors = weigh(w, seen)
            rate = self.h.options.coarse_rate * self.lr
            ahead = {
                name: phi[name] - rate * np.tensordot(factors, g, axes=1) / len(seen) for name, g in gradients.items()
            }
            return batch.labeled_loss(ahead)

        return {name: linear.differences(lambda x, name=name: loss(w | {name: x}), w[name]) for name in w}


class Batch:
    """The images of one iteration as C-reg sees them: labeled and unlabeled ones as batches of their own."""

    def __init__(self, server, x, truth, labels, head, key):
        self.server = server
        self.x = {'labeled': x[:head], 'unlabeled': x[head:]}
        self.labels = {'labeled': truth[:head], 'unlabeled': labels[head:]}
        self.dropout = {kind: [factor(rng.fold(key, f'{kind}_dropout', piece)) for piece in MODEL] for kind in self.x}

    def logits(self, whole, kind):
        return self.server.train_logits(self.x[kind] @ whole['bottom'], whole['top'], self.dropout[kind])

    def cross_entropies(self, whole, kind):
        return linear.cross_entropies(self.logits(whole, kind), self.labels[kind])

    def labeled_loss(self, whole):
        return self.cross_entropies(whole, 'labeled').mean()

    def gradients(self, whole):
        """Of each unlabeled row's cross-entropy, by the arrays of the model: [R, ...]."""
        return {
            name: rows_by_row(lambda w, name=name: self.cross_entropies(whole | {name: w}, 'unlabeled'), whole[name])
            for name in MODEL
        }
