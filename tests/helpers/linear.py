"""A model of three matrices, and rounds of SemiSFL and FedSwitch-SL on it in NumPy, in float64.

`model()` is for the package: its programs are small, so that every option has a test that runs every time. The bottom
subtracts a mean, the batch's in training and a running one otherwise, as BatchNorm does; dropout is a random factor of
a whole batch. `Server` knows of the package the random streams, the views and which rows are read. Gradients are
differences, and travel from the server to clients as messages. numpy_rounds.py compares rounds with it.
"""

import functools
from collections import deque
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.types import Cohort, SplitParams
from semisfl_jax.models import SplitModel
from tests.helpers import draws, toy

FEATURES, WIDTH = 3, 3
PIECES = ('bottom', 'top', 'proj')


@functools.cache
def model():
    """The functions of the model, for the package."""

    def factor(key, train):
        return 1.0 + jax.random.uniform(key) if train and key is not None else 1.0

    def bottom(variables, x, key, train, rows=None):
        y, mean = x.reshape(len(x), -1) @ variables['params']['w'], variables['batch_stats']['mean']
        if not train:
            return y - mean, variables
        now = jnp.mean(y, axis=0, where=None if rows is None else rows[:, None])
        return (y - now) * factor(key, train), {**variables, 'batch_stats': {'mean': 0.9 * mean + 0.1 * now}}

    def top(variables, features, key, train, rows=None):
        return features @ variables['params']['w'] * factor(key, train), variables

    def tops(variables, features, keys):
        return jax.vmap(lambda rows, key: top(variables, rows, key, True)[0])(features, keys), variables

    def project(variables, features):
        z = jnp.pad(features @ variables['params']['w'], ((0, 0), (0, 1)), constant_values=1.0)
        return z / jnp.linalg.norm(z, axis=1, keepdims=True)

    def init(key):
        draw, pixels = np.random.default_rng(7), int(np.prod(toy.SHAPE))
        shapes = (pixels, FEATURES), (FEATURES, toy.CLASSES), (FEATURES, WIDTH - 1)
        w = [jnp.asarray(draw.normal(size=shape) / shape[0] ** 0.5, jnp.float32) for shape in shapes]
        bottom, top, proj = ({'params': {'w': matrix}} for matrix in w)
        return SplitParams({**bottom, 'batch_stats': {'mean': jnp.full(FEATURES, 0.25, jnp.float32)}}, top, proj)

    return SplitModel(init, bottom, top, tops, project, FEATURES, WIDTH)


def numbers(variables):
    """The matrices and the running mean of variables, by name, in float64; no projection head where there is none."""
    found = {name: getattr(variables, name)['params'].get('w') for name in PIECES}
    found['mean'] = variables.bottom['batch_stats']['mean']
    return {name: np.asarray(value, np.float64) for name, value in found.items() if value is not None}


def assert_close(found, expected, models=('student', 'teacher')):
    """The models of a state, and those of a `Server`."""
    for who in models:
        for name, value in numbers(getattr(found, who)).items():
            np.testing.assert_allclose(
                value, getattr(expected, who)[name], rtol=2e-3, atol=2e-4, err_msg=f'{who} {name}'
            )


def differences(loss, x, step=1e-5):
    """The gradient of a loss at an array, from both sides of every number."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        aside = np.zeros_like(x)
        aside[place] = step
        gradient[place] = (loss(x + aside) - loss(x - aside)) / (2 * step)
    return gradient


def gradients_of(loss, arrays):
    """The gradients of a loss of several arrays, those that are there."""

    def at(place):
        return lambda x: loss(*arrays[:place], x, *arrays[place + 1 :])

    return [differences(at(place), x) for place, x in enumerate(arrays) if x is not None]


class Sgd:
    """PyTorch's SGD of an array or of a tree of them: L2 term, momentum, Nesterov."""

    def __init__(self, h, lr):
        self.h, self.lr, self.velocity = h, lr, None

    def step(self, w, gradient):
        h = self.h
        gradient = jax.tree.map(lambda g, w: g + h.weight_decay * w, gradient, w)
        before = jax.tree.map(np.zeros_like, gradient) if self.velocity is None else self.velocity
        self.velocity = jax.tree.map(lambda v, g: h.momentum * v + g, before, gradient)
        ahead = jax.tree.map(lambda v, g: g + h.momentum * v if h.nesterov else v, self.velocity, gradient)
        return jax.tree.map(lambda w, d: w - self.lr * d, w, ahead)


class Adam:
    """PyTorch's."""

    def __init__(self, h, lr):
        self.h, self.lr, self.first, self.second, self.t = h, lr, 0.0, 0.0, 0

    def step(self, w, gradient):
        gradient, beta = gradient + self.h.weight_decay * w, self.h.momentum
        self.t += 1
        self.first = beta * self.first + (1 - beta) * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        size = np.sqrt(self.second / (1 - 0.999**self.t)) + 1e-8
        return w - self.lr * self.first / (1 - beta**self.t) / size


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


def project(features, w):
    """Unit rows. A last number of 1 before the division keeps them away from 0."""
    rows = np.column_stack([features @ w, np.ones(len(features))])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def cross_entropies(logits, labels):
    return np.log(np.sum(np.exp(logits), axis=1)) - logits[np.arange(len(labels)), labels]


def factor(key):
    return 1.0 + float(jax.random.uniform(key))


class References(NamedTuple):
    """Entries (key, label, confident) side by side; a key of None is zero."""

    keys: np.ndarray
    labels: np.ndarray
    confident: np.ndarray

    @classmethod
    def of(cls, entries):
        keys = [np.zeros(WIDTH) if key is None else key for key, _, _ in entries]
        return cls(np.array(keys), *(np.array([entry[place] for entry in entries]) for place in (1, 2)))


def contrast(anchors, labels, references, kappa, itself=False):
    """The mean of Eq. 3 over all anchors; `itself`: reference j is anchor j, which is not compared with it."""
    seen = ~np.eye(len(anchors), len(references.labels), dtype=bool) | (not itself)
    scores = anchors @ references.keys.T / kappa
    log_total = np.log(np.sum(np.exp(scores) * seen, axis=1, keepdims=True))
    positive = seen & references.confident & (labels[:, None] == references.labels)
    pulls = np.sum((scores - log_total) * positive, axis=1)
    return np.mean(-pulls / np.maximum(positive.sum(axis=1), 1))


class Rows(NamedTuple):
    """What the server has of the rows of an iteration."""

    logits: np.ndarray
    features: np.ndarray
    projections: np.ndarray | None
    teacher_logits: np.ndarray
    labels: np.ndarray
    confident: np.ndarray
    labeled: np.ndarray


class Server:
    """The server of SemiSFL or, with `labels_by` 'student' or 'switch', of FedSwitch-SL, and its clients' matrices."""

    def __init__(self, key, h, student, labels_by='teacher'):
        self.key, self.h, self.labels_by = key, h, labels_by
        self.student, self.teacher = numbers(student), numbers(student)
        self.contrasts, self.round, self.t = labels_by == 'teacher', 0, 0
        self.queue = Queues(h, key, WIDTH)

    def learning_rate(self):
        progress = min(self.round / self.h.lr_rounds, 1.0)
        return self.h.lr_min + 0.5 * (self.h.lr - self.h.lr_min) * (1 + np.cos(np.pi * progress))

    def run_round(self, federation, ids, visits, k_s):
        federation, self.lr = jax.device_get(federation), self.learning_rate()
        found = self.supervised_phase(federation, k_s)
        if self.round >= self.h.pre_rounds:
            if ids:
                found |= self.cross_entity_phase(federation, ids, visits)
            self.queue.clear()
        elif self.h.queue != 'single_ring':
            self.queue.clear()
        self.round += 1
        return found

    def pixels(self, view, key, images):
        x = toy.VIEWS.normalize(getattr(toy.VIEWS, view)(key, images))
        return np.asarray(x, np.float64).reshape(len(images), -1)

    def bottom(self, whole, x, key=None):
        """Features, and the mean that moves; in training with the key of dropout."""
        y = x @ whole['bottom']
        if key is None:
            return y - whole['mean'], whole['mean']
        return (y - y.mean(axis=0)) * factor(key), 0.9 * whole['mean'] + 0.1 * y.mean(axis=0)

    def supervised_phase(self, federation, k_s):
        h, optimizers, total = self.h, {name: Sgd(self.h, self.lr) for name in PIECES}, 0.0
        for _ in range(k_s):
            batch = h.server_batch_size, len(federation.server_index), h.k_s if h.sampling == 'replicated' else 0
            rows = federation.server_index[draws.server_rows(self.key, self.t, *batch)]
            images, labels = federation.server_images[rows], federation.server_labels[rows]
            key, entries, queued = rng.fold(self.key, 'supervised', self.t), [], []
            dropout = [rng.fold(key, 'dropout', piece) for piece in ('bottom', 'top')]
            factors = [factor(stream) for stream in dropout]
            twice = self.pixels('supervised', rng.fold(key, 'views'), np.concatenate([images] * (1 + self.contrasts)))
            x, other = twice[: len(labels)], twice[len(labels) :]
            if self.contrasts:
                moves = h.server_teacher_bn == 'train_first_round' and self.round == 0
                teacher_key = rng.fold(key, 'teacher_dropout') if moves else None
                features, self.teacher['mean'] = self.bottom(self.teacher, other, teacher_key)
                keys = project(features, self.teacher['proj'])
                entries = [(row, label, True) for row, label in zip(keys, labels, strict=True)]
                queued = self.queue.seen_by_supervised()

            references = References.of(entries + queued) if self.contrasts else None

            def loss(y, top, proj, labels=labels, references=references, factors=factors):
                features = (y - y.mean(axis=0)) * factors[0]
                value = np.mean(cross_entropies(features @ top * factors[1], labels))
                if not self.contrasts:
                    return value
                z, own = project(features, proj), self.h.supervised_references == 'student_supcon'
                if own:
                    references = references._replace(keys=np.concatenate([z, references.keys[len(z) :]]))
                return value + self.h.contrastive_weight * contrast(z, labels, references, self.h.temperature, own)

            now = [x @ self.student['bottom'], self.student['top'], self.student.get('proj')]
            total += loss(*now) / k_s
            gradients = gradients_of(loss, now)
            gradients[0] = x.T @ gradients[0]
            new = {'mean': self.bottom(self.student, x, dropout[0])[1]}
            for name, gradient in zip(PIECES, gradients, strict=False):
                new[name] = optimizers[name].step(self.student[name], gradient)
            self.student = self.student | new
            self.t += 1
            keep = min(1 - 1 / (self.t + 1), h.ema_decay) if h.ema_warmup else h.ema_decay
            self.teacher = {name: keep * old + (1 - keep) * self.student[name] for name, old in self.teacher.items()}
            if self.contrasts:
                self.queue.add_supervised(entries)
        return {'loss_supervised': total}

    def cross_entity_phase(self, federation, ids, visits):
        h, key, count = self.h, rng.fold(self.key, 'cross_entity', self.round), len(ids)
        cohort = Cohort(jnp.asarray(ids), jnp.ones(count), jnp.asarray(visits))
        rows, labeled = draws.client_rows(self.key, federation, cohort, h.batches)
        rows, labeled = np.asarray(rows), np.asarray(labeled)
        students, teachers = ([dict(whole) for _ in ids] for whole in (self.student, self.teacher))
        own, optimizers = [Sgd(h, self.lr) for _ in ids], {name: Sgd(h, self.lr) for name in PIECES}
        seen, found, asked = [[] for _ in ids], [], []
        for t in range(h.k_u):
            xs, es, entries, guesses = [], [], [], []
            streams = [{n: rng.fold(key, n, i, t) for n in ('student_dropout', 'teacher_dropout')} for i in ids]
            for n, client in enumerate(ids):
                images = federation.client_images[rows[n, t]]
                xs.append(self.pixels('strong', rng.fold(key, 'strong', client, t), images))
                es.append(self.bottom(students[n], xs[n], streams[n]['student_dropout'])[0])
                weak = self.pixels('weak', rng.fold(key, 'weak', client, t), images)
                asked.append(self.asks_teacher(seen[n]))
                whole = teachers[n] if asked[-1] else students[n] | {'top': self.student['top']}
                train = streams[n]['teacher_dropout'] if h.client_teacher_bn == 'train' else None
                truth = federation.client_labels[rows[n, t]]
                features = self.bottom(whole, weak, train)[0]
                guesses.append(features @ whole['top'])
                entries += self.label(features, guesses[-1], truth, labeled[n, t], seen[n])
            dropout = np.repeat([factor(rng.fold(key, 'top_dropout', i, t)) for i in ids], h.batch_size)[:, None]
            labels, sure = (np.array([entry[place] for entry in entries]) for place in (1, 2))
            references = References.of(entries + self.queue.seen_by_clients()) if self.contrasts else None

            targets = np.concatenate(guesses), labels, sure, labeled[:, t].reshape(-1)

            def terms(e, top, proj, dropout=dropout, targets=targets, references=references):
                z = project(e, proj) if self.contrasts else None
                weighed = self.terms(Rows(e @ top * dropout, e, z, *targets))
                weighed = {name: (weight, np.mean(values)) for name, (weight, values) in weighed.items()}
                if self.contrasts:
                    value = contrast(z, targets[1], references, h.temperature)
                    weighed['loss_clustering'] = h.clustering_weight, value
                return weighed

            now = [np.concatenate(es), self.student['top'], self.student.get('proj')]
            found.append({name: value for name, (_, value) in terms(*now).items()})
            back, *gradients = gradients_of(lambda *now, terms=terms: sum(w * x for w, x in terms(*now).values()), now)
            for name, gradient in zip(PIECES[1:], gradients, strict=False):
                self.student[name] = optimizers[name].step(self.student[name], gradient)
            for n, down in enumerate(np.split(count * back, count)):  # of the mean over the client's own rows
                down = down * factor(streams[n]['student_dropout'])
                moved = self.bottom(students[n], xs[n], streams[n]['student_dropout'])[1]
                w = own[n].step(students[n]['bottom'], xs[n].T @ (down - down.mean(axis=0)))
                students[n] = students[n] | {'bottom': w, 'mean': moved}
                if h.client_teacher_ema:
                    for name in ('bottom', 'mean'):
                        old = teachers[n][name]
                        teachers[n][name] = h.ema_decay * old + (1 - h.ema_decay) * students[n][name]
            self.queue.add_unlabeled(entries, t)
        for name in ('bottom', 'mean'):
            self.student[name] = np.mean([student[name] for student in students], axis=0)
        metrics = {name: np.mean([values[name] for values in found]) for name in found[0]}
        return metrics | ({'student_labels': 1 - np.mean(asked)} if self.labels_by == 'switch' else {})

    def terms(self, rows):
        """{metric: (weight, values of rows)}: consistency regularization."""
        values = cross_entropies(rows.logits, rows.labels) * rows.confident
        return {'loss_consistency': (self.h.consistency_weight, values)}

    def label(self, features, logits, truth, known, seen):
        """(key, label, confident) of every row; of the confident ones without a label, the class goes to `seen`."""
        entries, powers = [], np.exp(logits)
        keys = project(features, self.teacher['proj']) if self.contrasts else [None] * len(powers)
        for row, q, own, is_known in zip(keys, powers / powers.sum(axis=1, keepdims=True), truth, known, strict=True):
            guess, sure = int(np.argmax(q)), bool(np.max(q) >= self.h.threshold)
            if sure and not is_known:
                seen.append(guess)
            entries.append((row, int(own), True) if is_known else (row, guess, sure))
        return entries

    def asks_teacher(self, seen):
        """By the divergence of the shares of classes from even ones; of no evidence, the highest."""
        if self.labels_by != 'switch':
            return self.labels_by == 'teacher'
        share = np.bincount(seen, minlength=toy.CLASSES) / len(seen) if seen else np.eye(toy.CLASSES)[0]
        return sum(p * np.log(p * toy.CLASSES) for p in share if p) > self.h.options.beta_iid
