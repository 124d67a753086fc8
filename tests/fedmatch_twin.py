"""A round of FedMatch's clients written out plainly: one client after another, votes in loops, SGD by hand.

It shares with the package what is not under test: the network functions, the random streams, the views, the draws of
batches, and the image of noise.
"""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.algorithms import fedmatch
from semisfl_jax.core import rng
from semisfl_jax.core.types import Cohort, SplitParams
from tests import draws
from tests.local_twin import softmax
from tests.twin import Sgd


def parameters(variables):
    return tuple(piece['params'] for piece in variables)


def filled(variables, *parts):
    """`variables` with the sum of parts as parameters."""
    summed = jax.tree.map(lambda *x: sum(x), *parts)
    return SplitParams(*({**piece, 'params': new} for piece, new in zip(variables, summed, strict=True)))


def helpers_of(client, embeddings, count):
    """The nearest others among {client: embedding}; nobody for a client that is not in it."""
    if client not in embeddings:
        return []
    others = [(float(np.sum((other - embeddings[client]) ** 2)), n) for n, other in embeddings.items() if n != client]
    return [n for _, n in sorted(others)[:count]]


def arriving(new, received, delta, smallest):
    """What the server makes of trained trees, entry by entry, and the share of entries that were sent.

    An entry that changed by no more than `delta` is not sent, and the server has the one that it gave out. Whether it
    changed is seen with entries up to `smallest` set to 0; one that is sent goes as it is.
    """
    sent, count = 0, 0

    def leaf(now, before):
        nonlocal sent, count
        result = []
        for a, b in zip(np.ravel(now), np.ravel(before), strict=True):
            seen = a if abs(a) > smallest else np.float32(0.0)
            changed = abs(seen - b) > delta
            result.append(a if changed else b)
            sent, count = sent + changed, count + 1
        return jnp.asarray(result).reshape(np.shape(now))

    return jax.tree.map(leaf, new, received), sent / count


def agreed(label, helpers):
    """The class with most votes, the lowest of equals."""
    votes = [label, *helpers]
    return min(sorted(set(votes)), key=lambda k: (-votes.count(k), k))


class Twin:
    """Server and clients. `student` has sigma as its parameters, `psi` is a tuple of trees."""

    def __init__(self, key, model, views, h, student, psi):
        self.key, self.model, self.views, self.h = key, model, views, h
        self.student, self.psi, self.round = student, psi, 0
        self.last, self.embeddings, self.sent, self.kept = {}, {}, {}, {}

    def logits(self, variables, x, key=None):
        train = key is not None
        keys = (rng.fold(key, 'bottom'), rng.fold(key, 'top')) if train else (None, None)
        features, bottom = self.model.bottom(variables.bottom, x, keys[0], train)
        logits, top = self.model.top(variables.top, features, keys[1], train)
        return logits, SplitParams(bottom, top, variables.proj)

    def run_round(self, federation, ids, visits, lr):
        """The clients' part. Returns the means over clients of what was measured."""
        options, due = self.h.options, (self.round + 1) % self.h.options.helper_every == 0
        if not options.helpers_persist:
            self.sent = {}
        if due:
            chosen = {n: helpers_of(n, self.embeddings, options.helpers) for n in ids}
            self.sent |= {n: [self.last[m] for m in helpers] for n, helpers in chosen.items()}
        uploads, client_metrics = [], []
        for client, visit in zip(ids, visits, strict=True):
            cohort = Cohort(jnp.array([client]), jnp.ones(1), jnp.array([visit]))
            rows, known = draws.client_rows(self.key, federation, cohort, self.h.batches)
            result = self.train(federation, client, np.asarray(rows[0]), np.asarray(known[0]), lr)
            uploads.append(result[0])
            client_metrics.append(result[1])
        for client, (variables, psi) in zip(ids, uploads, strict=True):
            image = fedmatch.noise(rng.fold(self.key, 'noise'), federation.client_images.shape[1:])
            x = self.views.normalize(image[None])
            self.last[client] = psi
            self.embeddings[client] = softmax(self.logits(filled(variables, parameters(variables), psi), x)[0][0])
        self.student, self.psi = jax.tree.map(lambda *x: sum(x) / len(x), *uploads)
        self.round += 1
        return {name: np.mean([m[name] for m in client_metrics]) for name in client_metrics[0]}

    def train(self, federation, client, rows, labeled, lr):
        h, options = self.h, self.h.options
        key = rng.fold(rng.fold(self.key, 'local', self.round), client)
        variables, psi = self.student, self.psi  # variables: sigma and the statistics
        helpers = [filled(self.student, parameters(self.student), other) for other in self.sent.get(client, [])]
        sgd = self.kept.get(client) or {'sigma': Sgd(h, lr), 'psi': Sgd(h, lr)}
        sgd['sigma'].lr = sgd['psi'].lr = lr
        sums = dict.fromkeys(('loss_local', 'loss_agreement', 'loss_inter_client'), 0.0)
        for t in range(h.k_u):
            images, truth = federation.client_images[rows[t]], np.asarray(federation.client_labels[rows[t]])
            step_key = rng.fold(key, t)
            if labeled[t].any():
                head = h.labeled_rows
                x = self.views.normalize(self.views.supervised(rng.fold(step_key, 'supervised'), images[:head]))

                def labels_loss(sigma, variables=variables, psi=psi, x=x, y=truth[:head], key=step_key):
                    logits, moved = self.logits(filled(variables, sigma, psi), x, rng.fold(key, 'sigma_dropout'))
                    rows = [jax.nn.logsumexp(row) - row[k] for row, k in zip(logits, y, strict=True)]
                    return options.lambda_s * sum(rows) / len(y), moved

                sigma = parameters(variables)
                (value, moved), gradient = jax.value_and_grad(labels_loss, has_aux=True)(sigma)
                variables = filled(moved, sgd['sigma'].step(sigma, gradient))
                sums['loss_local'] += float(value)

            x = self.views.normalize(images)
            guesses = np.asarray(self.logits(filled(variables, parameters(variables), psi), x)[0])
            theirs = [np.asarray(self.logits(helper, x)[0]) for helper in helpers]
            sure = [j for j in range(len(rows[t])) if not labeled[t][j] and softmax(guesses[j]).max() >= h.threshold]
            labels = {j: agreed(guesses[j].argmax(), [other[j].argmax() for other in theirs]) for j in sure}
            strong = self.views.normalize(self.views.strong(rng.fold(step_key, 'strong'), images))

            def unlabeled_loss(
                psi, variables=variables, x=x, strong=strong, labels=labels, theirs=theirs, key=step_key
            ):
                now = filled(variables, parameters(variables), psi)
                logits, moved = self.logits(now, strong, rng.fold(key, 'psi_dropout'))
                local = self.logits(now, x)[0]
                agreement_, inter = 0.0, 0.0
                for j, label in labels.items():
                    agreement_ += (jax.nn.logsumexp(logits[j]) - logits[j][label]) / len(labels)
                    q = local[j] - jax.nn.logsumexp(local[j])
                    for other in theirs:
                        p = softmax(other[j])
                        inter += jnp.sum(p * (np.log(p) - q)) / len(theirs) / len(labels)
                pairs = zip(jax.tree.leaves(parameters(variables)), jax.tree.leaves(psi), strict=True)
                value = options.lambda_a * agreement_ + options.lambda_i * inter
                value += options.lambda_l2 * sum(jnp.sum((a - b) ** 2) for a, b in pairs)
                value += options.lambda_l1 * sum(jnp.sum(jnp.abs(b)) for b in jax.tree.leaves(psi))
                return value, (moved, agreement_, inter)

            (value, (moved, agreement_, inter)), gradient = jax.value_and_grad(unlabeled_loss, has_aux=True)(psi)
            variables, psi = filled(moved, parameters(variables)), sgd['psi'].step(psi, gradient)
            for name, term in zip(sums, (value, agreement_, inter), strict=True):
                sums[name] += float(term)
        if h.local.optimizer_state == 'kept':
            self.kept[client] = sgd
        metrics = {k: v / h.k_u for k, v in sums.items()} | {'helpers_used': len(helpers)}
        if options.delta_threshold:
            psi, metrics['psi_sent'] = arriving(psi, self.psi, options.delta_threshold, options.l1_threshold)
            sigma = parameters(variables), parameters(self.student)
            sigma, metrics['sigma_sent'] = arriving(*sigma, options.delta_threshold, 0.0)
            variables = filled(variables, sigma)
        return (variables, psi), metrics
