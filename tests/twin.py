"""One round of SemiSFL written out as the paper's Algorithm 1: server and clients as objects that pass messages.

Nothing here is stacked, mapped or compiled. Clients compute one after another, features and gradients travel as
arrays, the queue is a `deque`, the optimizer is five lines of NumPy-like arithmetic and the losses are loops over
anchors. It shares with the package what is not under test: the network functions, the random streams and the views.
Slow on purpose; `test_semisfl.py` holds the package's fast round against it.
"""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.types import Cohort, SplitParams
from tests import draws


class Sgd:
    """PyTorch's SGD: L2 term, momentum, Nesterov. One per model piece, made anew each round."""

    def __init__(self, h, lr):
        self.h, self.lr, self.velocity = h, lr, None

    def step(self, parameters, gradient):
        gradient = jax.tree.map(lambda g, w: g + self.h.weight_decay * w, gradient, parameters)
        if self.velocity is None:
            self.velocity = jax.tree.map(jnp.zeros_like, gradient)
        self.velocity = jax.tree.map(lambda v, g: self.h.momentum * v + g, self.velocity, gradient)
        ahead = self.velocity
        if self.h.nesterov:
            ahead = jax.tree.map(lambda v, g: g + self.h.momentum * v, self.velocity, gradient)
        return jax.tree.map(lambda w, d: w - self.lr * d, parameters, ahead)


@jax.jit
def cross_entropy(logits, label):
    return jnp.log(jnp.sum(jnp.exp(logits))) - logits[label]


@jax.jit
def attraction(z, keys, seen, positive, kappa):
    """-1/|P| times the sum over P of z.k/kappa - log(sum over the seen of exp(z.k/kappa))."""
    scores = keys @ z / kappa
    return -jnp.sum((scores - jnp.log(jnp.sum(jnp.exp(scores) * seen))) * positive) / jnp.sum(positive)


class References:
    """Entries (key, label, confident), key None for an empty slot that stands in the denominator as zero."""

    def __init__(self, entries):
        self.labels = np.array([label for _, label, _ in entries])
        self.confident = np.array([bool(sure) for _, _, sure in entries])
        zero = jnp.zeros_like(next(key for key, _, _ in entries if key is not None))
        keys = jnp.stack([zero if key is None else key for key, _, _ in entries])
        self.room = -len(entries) % 64  # the same shapes at every step spare this slow code most compilations
        self.keys = jnp.pad(keys, ((0, self.room), (0, 0)))

    def contrastive(self, z, label, kappa, skip=None):
        """C_j of one anchor; `skip` is a reference that it is not compared with."""
        seen = np.arange(len(self.labels)) != skip
        positive = seen & self.confident & (self.labels == label)
        if not positive.any():
            return 0.0
        return attraction(z, self.keys, np.pad(seen, (0, self.room)), np.pad(positive, (0, self.room)), kappa)


class Queues:
    """The three policies, one entry (key, label, confident) per slot."""

    def __init__(self, h, key=None, width=0):
        self.h = h
        self.clear()
        if h.queue == 'single_ring':  # which starts as random unit vectors
            rows = jax.random.normal(rng.fold(key, 'queue'), (h.queue_size, width))
            self.slots = list(rows / jnp.linalg.norm(rows, axis=1, keepdims=True))

    def clear(self):
        self.slots = [None] * self.h.queue_size  # what lies in slots that no key has entered
        self.first, self.second = deque(maxlen=self.h.queue_size), deque(maxlen=self.h.queue_size)

    def padding(self, ring):
        counts = self.h.queue_empty_slots == 'count' or (
            self.h.queue_empty_slots == 'auto' and self.h.queue == 'single_ring'
        )
        return [(slot, -1, False) for slot in self.slots[len(ring) :]] if counts else []

    def seen_by_supervised(self):
        if self.h.queue == 'off':
            return []
        if self.h.queue == 'single_ring':  # every label is true or as good as true
            return [(key, label, True) for key, label, _ in self.first] + self.padding(self.first)
        return list(self.first) + self.padding(self.first)

    def seen_by_clients(self):
        if self.h.queue == 'off':
            return []
        if self.h.queue == 'single_ring':
            return list(self.first) + self.padding(self.first)
        return [*self.second, *self.padding(self.second), *self.first, *self.padding(self.first)]

    def add_supervised(self, entries):
        if self.h.queue == 'single_ring':  # the flag is not written, and a fresh slot's is False
            entries = [(key, label, False) for key, label, _ in entries]
        self.first.extend(entries)

    def add_unlabeled(self, entries, t):
        if self.h.queue == 'single_ring':
            self.first.extend(entries)
        else:
            self.second.extend(entries)
            if (t + 1) % self.h.queue_stride == 0:
                self.first.extend(entries)


class Client:
    """Holds images and, during a round, a student and a teacher bottom."""

    def __init__(self, server, client, bottom, teacher_bottom, lr):
        self.server, self.id, self.bottom, self.teacher_bottom = server, client, bottom, teacher_bottom
        self.optimizer = Sgd(server.h, lr)

    def forward(self, images, key, t):
        """Features of a strong view by the student and of a weak view by the teacher."""
        s = self.server
        view = {
            name: rng.fold(key, name, self.id, t) for name in ('weak', 'strong', 'student_dropout', 'teacher_dropout')
        }
        strong = s.views.normalize(s.views.strong(view['strong'], images))
        weak = s.views.normalize(s.views.weak(view['weak'], images))

        def student(parameters):
            return s.model.bottom({**self.bottom, 'params': parameters}, strong, view['student_dropout'], True)

        features, self.backward, statistics = jax.vjp(student, self.bottom['params'], has_aux=True)
        self.moved = statistics
        train = s.h.client_teacher_bn == 'train'
        teacher_features, _ = s.model.bottom(self.teacher_bottom, weak, view['teacher_dropout'], train)
        return features, teacher_features

    def update(self, feature_gradient):
        (gradient,) = self.backward(feature_gradient)
        self.bottom = {**self.moved, 'params': self.optimizer.step(self.bottom['params'], gradient)}
        if self.server.h.client_teacher_ema:
            keep = self.server.h.ema_decay
            self.teacher_bottom = jax.tree.map(lambda a, b: keep * a + (1 - keep) * b, self.teacher_bottom, self.bottom)


class Server:
    """Holds labels, top, projection head, teacher and queue."""

    client = Client

    def __init__(self, key, model, views, h, student):
        self.key, self.model, self.views, self.h = key, model, views, h
        self.student, self.teacher = student, student
        self.queue, self.round, self.t = Queues(h, key, model.projection_size), 0, 0

    def learning_rate(self):
        progress = min(self.round / self.h.lr_rounds, 1.0)
        return self.h.lr_min + 0.5 * (self.h.lr - self.h.lr_min) * (1 + np.cos(np.pi * progress))

    def run_round(self, federation, ids, visits, k_s):
        metrics = {'loss_supervised': self.supervised_phase(federation, k_s)}
        if self.round >= self.h.pre_rounds:
            metrics['loss_consistency'], metrics['loss_clustering'] = self.cross_entity_phase(federation, ids, visits)
            self.queue.clear()
        elif self.h.queue != 'single_ring':  # which is emptied after the clients' phase alone
            self.queue.clear()
        self.round += 1
        return metrics

    def supervised_phase(self, federation, k_s):
        h, model, total = self.h, self.model, 0.0
        optimizer = Sgd(h, self.learning_rate())
        for _ in range(k_s):
            batch = h.server_batch_size, len(federation.server_index), h.k_s if h.sampling == 'replicated' else 0
            rows = draws.server_rows(self.key, self.t, *batch)
            rows = federation.server_index[rows]
            images, labels = federation.server_images[rows], np.asarray(federation.server_labels[rows])
            key = rng.fold(self.key, 'supervised', self.t)
            twice = jnp.concatenate([images, images])
            views = self.views.normalize(self.views.supervised(rng.fold(key, 'views'), twice))
            view, other = views[: len(images)], views[len(images) :]
            train = h.server_teacher_bn == 'train_first_round' and self.round == 0
            features, bottom = model.bottom(self.teacher.bottom, other, rng.fold(key, 'teacher_dropout'), train)
            self.teacher = self.teacher._replace(bottom=bottom)
            keys = model.project(self.teacher.proj, features)
            entries = [(key_, int(label), True) for key_, label in zip(keys, labels, strict=True)]
            queued = self.queue.seen_by_supervised()

            def loss(parameters, view=view, labels=labels, entries=entries, queued=queued, key=key):
                bottom, top, proj = (
                    {**piece, 'params': new} for piece, new in zip(self.student, parameters, strict=True)
                )
                dropout = rng.fold(key, 'dropout')
                features, bottom = model.bottom(bottom, view, rng.fold(dropout, 'bottom'), True)
                logits, top = model.top(top, features, rng.fold(dropout, 'top'), True)
                z = model.project(proj, features)
                value, supcon = 0.0, h.supervised_references == 'student_supcon'
                batch = [(row, int(label), True) for row, label in zip(z, labels, strict=True)] if supcon else entries
                references = References(batch + queued)
                for j, label in enumerate(labels):
                    c = references.contrastive(z[j], label, h.temperature, skip=j if supcon else None)
                    value += (cross_entropy(logits[j], label) + h.contrastive_weight * c) / len(labels)
                return value, (bottom, top)

            parameters = tuple(piece['params'] for piece in self.student)
            (value, (bottom, top)), gradient = jax.value_and_grad(loss, has_aux=True)(parameters)
            new = optimizer.step(parameters, gradient)
            self.student = SplitParams({**bottom, 'params': new[0]}, {**top, 'params': new[1]}, {'params': new[2]})
            self.t += 1
            keep = min(1 - 1 / (self.t + 1), h.ema_decay) if h.ema_warmup else h.ema_decay
            self.teacher = jax.tree.map(lambda a, b, keep=keep: keep * a + (1 - keep) * b, self.teacher, self.student)
            self.queue.add_supervised(entries)
            total += float(value)
        return total / k_s

    def cross_entity_phase(self, federation, ids, visits):
        h, lr, key = self.h, self.learning_rate(), rng.fold(self.key, 'cross_entity', self.round)
        clients = [self.client(self, i, self.student.bottom, self.teacher.bottom, lr) for i in ids]
        optimizer, consistency, clustering = Sgd(h, lr), 0.0, 0.0
        cohort = Cohort(jnp.asarray(ids), jnp.ones(len(ids)), jnp.asarray(visits))
        rows, labeled = draws.client_rows(self.key, federation, cohort, h.batches, order=h.sampling)
        for t in range(h.k_u):
            uploads = [c.forward(federation.client_images[rows[n, t]], key, t) for n, c in enumerate(clients)]
            features = jnp.concatenate([up[0] for up in uploads])
            teacher_features = jnp.concatenate([up[1] for up in uploads])
            truth = np.asarray(federation.client_labels)[np.asarray(rows[:, t]).ravel()]
            entries = self.label(teacher_features, truth, np.asarray(labeled[:, t]).ravel())
            masks = [rng.fold(key, 'top_dropout', client.id, t) for client in clients]
            (h_term, c_term), down = self.update(features, entries, optimizer, masks)
            for n, client in enumerate(clients):
                # N_h times the slice of the mean's gradient: the gradient of the client's own mean
                client.update(len(clients) * down[n * h.batch_size : (n + 1) * h.batch_size])
            self.queue.add_unlabeled(entries, t)
            consistency, clustering = consistency + float(h_term) / h.k_u, clustering + float(c_term) / h.k_u
        bottom = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *(c.bottom for c in clients))
        self.student = self.student._replace(bottom=bottom)
        return consistency, clustering

    def label(self, features, truth, labeled):
        """(key, label, confident) of every row of teacher features."""
        logits, _ = self.model.top(self.teacher.top, features, None, False)
        keys = self.model.project(self.teacher.proj, features)
        entries = []
        for j, row in enumerate(np.asarray(logits, np.float64)):
            q = np.exp(row) / np.sum(np.exp(row))
            guess = (int(np.argmax(q)), bool(np.max(q) >= self.h.threshold))
            entries.append((keys[j], *((int(truth[j]), True) if labeled[j] else guess)))
        return entries

    def top(self, top, features, dropout):
        """Logits of all rows. Each client's rows have a dropout key of their own; the top here has no BatchNorm."""
        parts = jnp.split(features, len(dropout))
        logits = [self.model.top(top, part, key, True)[0] for part, key in zip(parts, dropout, strict=True)]
        return jnp.concatenate(logits), top

    def update(self, features, entries, optimizer, dropout):
        """One server step; returns the two losses and the gradient of the features."""
        references = References(entries + self.queue.seen_by_clients())

        def loss(parameters, features):
            top, proj = ({**old, 'params': new} for old, new in zip(self.student[1:], parameters, strict=True))
            logits, top = self.top(top, features, dropout)
            z = self.model.project(proj, features)
            rows = len(entries)
            h_term = sum(cross_entropy(logits[j], e[1]) for j, e in enumerate(entries) if e[2]) / rows
            c_term = sum(references.contrastive(z[j], e[1], self.h.temperature) for j, e in enumerate(entries)) / rows
            return self.h.consistency_weight * h_term + self.h.clustering_weight * c_term, (h_term, c_term, top)

        parameters = tuple(piece['params'] for piece in self.student[1:])
        (_, (h_term, c_term, top)), (gradient, down) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
            parameters, features
        )
        new_top, new_proj = optimizer.step(parameters, gradient)
        self.student = SplitParams(self.student.bottom, {**top, 'params': new_top}, {'params': new_proj})
        return (h_term, c_term), down
