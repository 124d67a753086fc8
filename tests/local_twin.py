"""A round of the full-model methods written out plainly: clients one after another, rows in loops, SGD by hand.

It shares with the package what is not under test: the network functions, the random streams, the views and the draws of
batches. `test_fedavg.py` and `test_fedswitch.py` hold the package's rounds against it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.types import Cohort, SplitParams
from tests import draws
from tests.twin import Sgd


def softmax(row):
    powers = np.exp(np.float64(row) - np.max(row))
    return powers / powers.sum()


class Twin:
    """Server, clients and what they keep."""

    def __init__(self, key, model, views, h, student, name='fedavg', teacher=None):
        self.key, self.model, self.views, self.h, self.name = key, model, views, h, name
        self.student, self.teacher, self.round, self.kept = student, teacher, 0, {}

    def logits(self, variables, x, key=None, train=False):
        keys = (None, None) if key is None else (rng.fold(key, 'bottom'), rng.fold(key, 'top'))
        features, bottom = self.model.bottom(variables.bottom, x, keys[0], train)
        logits, top = self.model.top(variables.top, features, keys[1], train)
        return logits, SplitParams(bottom, top, variables.proj)

    def run_round(self, federation, ids, visits, lr):
        """The clients' part of a round; the server does nothing. Returns what was measured."""
        h, uploads, weights, client_metrics = self.h, [], [], []
        for client, visit in zip(ids, visits, strict=True):
            unlabeled, labeled = int(federation.size[client]), int(federation.labeled_size[client])
            labels_only = h.local.objective == 'supervised'
            images = labeled if labels_only else unlabeled + (labeled if h.labeled_rows else 0)
            if not images:
                continue
            steps = h.k_u
            if h.local.epochs:
                per_step = h.batch_size - (0 if labels_only or not labeled else h.labeled_rows)
                steps = math.ceil(h.local.epochs * (labeled if labels_only else unlabeled) / per_step)
            cohort = Cohort(jnp.array([client]), jnp.ones(1), jnp.array([visit]))
            rows, known = draws.client_rows(self.key, federation, cohort, h.batches)
            student, measured = self.train(federation, client, np.asarray(rows[0]), np.asarray(known[0]), steps, lr)
            uploads.append(student)
            weights.append(images if h.local.weighting == 'samples' else 1)
            client_metrics.append(measured)
        share = np.array(weights) / np.sum(weights)
        self.student = jax.tree.map(lambda *x: sum(s * y for s, y in zip(share, x, strict=True)), *uploads)
        self.round += 1
        return {name: np.mean([m[name] for m in client_metrics]) for name in client_metrics[0]}

    def train(self, federation, client, rows, labeled_rows, steps, lr):
        h, key = self.h, rng.fold(rng.fold(self.key, 'local', self.round), client)
        variables, teacher, start = self.student, self.teacher, tuple(piece['params'] for piece in self.student)
        optimizer, total = self.kept.get(client, Sgd(h, lr)), 0.0
        optimizer.lr = lr
        trusts = self.trusts_student(federation, rows, labeled_rows, steps, key) if self.name == 'fedswitch' else True
        for t in range(steps):
            images = federation.client_images[rows[t]]
            truth, labeled, step_key = np.asarray(federation.client_labels[rows[t]]), labeled_rows[t], rng.fold(key, t)
            weak = self.views.normalize(self.views.weak(rng.fold(step_key, 'weak'), images))
            guesses = np.asarray(self.logits(variables if trusts else teacher, weak)[0])
            # Row by row: the distribution that it is drawn to, its entropy, and what it weighs in the loss.
            drawn_to, entropy, weight = np.zeros(guesses.shape), np.zeros(len(truth)), np.zeros(len(truth))
            for j, (label, is_known) in enumerate(zip(truth, labeled, strict=True)):
                target = np.eye(guesses.shape[1])[label] if is_known else self.target(guesses[j])
                if target is not None:
                    drawn_to[j] = target
                    entropy[j] = -sum(p * np.log(p) for p in target if p > 0)
                    weight[j] = 1 / labeled.sum() if is_known else h.consistency_weight / (~labeled).sum()
            view = np.asarray(self.views.strong(rng.fold(step_key, 'strong'), images)).copy()
            if labeled.any():
                head = np.asarray(self.views.supervised(rng.fold(step_key, 'supervised'), images[: h.labeled_rows]))
                view[labeled] = head[labeled[: h.labeled_rows]]
            x = self.views.normalize(jnp.asarray(view))

            def loss(parameters, variables=variables, x=x, rows=(drawn_to, entropy, weight), step_key=step_key):
                now = SplitParams(*({**a, 'params': b} for a, b in zip(variables, parameters, strict=True)))
                logits, moved = self.logits(now, x, rng.fold(step_key, 'dropout'), True)
                q = logits - jnp.log(jnp.sum(jnp.exp(logits), axis=1, keepdims=True))
                drawn_to, entropy, weight = rows  # KL(p || q) = -sum p log q - entropy; of a label, cross-entropy
                value = jnp.sum(weight * (-jnp.sum(drawn_to * q, axis=1) - entropy))
                if self.name == 'fedprox':
                    pairs = zip(jax.tree.leaves(parameters), jax.tree.leaves(start), strict=True)
                    value += h.local.prox / 2 * sum(jnp.sum((a - b) ** 2) for a, b in pairs)
                return value, moved

            parameters = tuple(piece['params'] for piece in variables)
            (value, moved), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)
            new = optimizer.step(parameters, gradient)
            variables = SplitParams(*({**a, 'params': b} for a, b in zip(moved, new, strict=True)))
            if teacher is not None:
                keep = h.ema_decay
                teacher = jax.tree.map(lambda a, b, keep=keep: keep * a + (1 - keep) * b, teacher, variables)
            total += float(value)
        if h.local.optimizer_state == 'kept':
            self.kept[client] = optimizer
        measured = {'student_labels': float(trusts)} if self.name == 'fedswitch' else {}
        return variables, measured | ({'loss_local': total / steps} if self.name != 'fedprox' else {})

    def target(self, logits):
        """The distribution [K] that a row is drawn to, None where it does not count."""
        p = softmax(logits)
        if self.h.local.objective == 'uda':
            if p.max() <= self.h.threshold:
                return None
            return softmax(np.asarray(logits) / self.h.uda.temperature)
        if p.max() < self.h.threshold:
            return None
        return np.eye(len(p))[p.argmax()]

    def trusts_student(self, federation, rows, labeled_rows, steps, key):
        mode = self.h.options.mode
        if mode != 'switch':
            return mode == 'student'
        seen = []
        for t in range(steps):
            weak = self.views.weak(rng.fold(key, 'skew', t), federation.client_images[rows[t]])
            logits = self.logits(self.student, self.views.normalize(weak))[0]
            sure = [softmax(row) for row, is_known in zip(logits, labeled_rows[t], strict=True) if not is_known]
            seen += [int(p.argmax()) for p in sure if p.max() >= self.h.threshold]
        if not seen:
            return math.log(3) <= self.h.options.beta_iid
        share = np.bincount(seen, minlength=3) / len(seen)
        return sum(p * math.log(p * len(share)) for p in share if p > 0) <= self.h.options.beta_iid
