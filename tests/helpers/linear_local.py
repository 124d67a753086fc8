"""Rounds of the full-model methods on the model of linear.py, in NumPy: clients one after another, row by row."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.types import Cohort
from tests.helpers import draws, linear, toy
from tests.helpers.linear import Sgd, factor


def softmax(logits):
    powers = np.exp(logits)
    return powers / powers.sum(axis=1, keepdims=True)


class Server(linear.Server):
    """The server of FedAvg, FedProx or FedSwitch; its supervised phase is cross-entropy alone."""

    def __init__(self, name, key, h, student, teacher):
        super().__init__(key, h, student, labels_by='switch')
        self.name, self.kept = name, {}
        if teacher:
            self.teacher = linear.numbers(teacher)

    def run_round(self, federation, ids, visits, k_s):
        federation, found = jax.device_get(federation), {}
        self.lr = self.learning_rate()
        if self.h.server_trains:
            found |= self.supervised_phase(federation, k_s)
        if self.round >= self.h.pre_rounds:
            found |= self.local_phase(federation, ids, visits)
        self.round += 1
        return found

    def local_phase(self, federation, ids, visits):
        h, uploads, weights, found = self.h, [], [], []
        alone = h.local.objective == 'supervised'
        for client, visit in zip(ids, visits, strict=True):
            unlabeled, labeled = int(federation.size[client]), int(federation.labeled_size[client])
            images = labeled if alone else unlabeled + (labeled if h.labeled_rows else 0)
            if not images:
                continue
            steps = h.k_u
            if h.local.epochs:
                per_step = h.batch_size - (0 if alone or not labeled else h.labeled_rows)
                steps = math.ceil(h.local.epochs * (labeled if alone else unlabeled) / per_step)
            cohort = Cohort(jnp.array([client]), jnp.ones(1), jnp.array([visit]))
            rows, known = jax.device_get(draws.client_rows(self.key, federation, cohort, h.batches))
            student, measured = self.train(federation, client, rows[0, :steps], known[0, :steps])
            uploads.append(student)
            weights.append(images if h.local.weighting == 'samples' else 1)
            found.append(measured)
        share = np.array(weights) / sum(weights)
        for name in ('bottom', 'top', 'mean'):
            self.student[name] = sum(s * upload[name] for s, upload in zip(share, uploads, strict=True))
        return {name: np.mean([measured[name] for measured in found]) for name in found[0]}

    def logits(self, whole, x):
        return self.bottom(whole, x)[0] @ whole['top']

    def train(self, federation, client, rows, known):
        """A client's steps: what it uploads, and what is measured."""
        h, key = self.h, rng.fold(self.key, 'local', self.round, client)
        start, whole, teacher = self.student, dict(self.student), dict(self.teacher)
        if h.local.objective == 'mean_teacher':
            teacher = dict(start)
        optimizers = self.kept.get(client) or {name: Sgd(h, self.lr) for name in ('bottom', 'top')}
        trusts = self.name != 'fedswitch' or self.trusts_student(federation, rows, known, key)
        total = 0.0
        for t, (read, labeled) in enumerate(zip(rows, known, strict=True)):
            images, truth, step_key = federation.client_images[read], federation.client_labels[read], rng.fold(key, t)
            factors = [factor(rng.fold(step_key, 'dropout', piece)) for piece in ('bottom', 'top')]
            x, seen = self.views_of(images, labeled, step_key), self.seen_by_labeler(step_key, images)
            if h.local.objective == 'mean_teacher' and h.local.input_noise:
                for view, name in ((x, 'noise'), (seen, 'teacher_noise')):
                    drawn = jax.random.normal(rng.fold(step_key, name), (len(view), *toy.SHAPE))
                    view += h.local.input_noise * np.asarray(drawn, np.float64).reshape(view.shape)
            y = x @ whole['bottom']
            guesses = self.logits(self.labeler(whole, teacher, trusts), seen)
            targets = self.targets(guesses, truth, labeled)
            weight = self.weights(self.train_logits(y, whole['top'], factors), truth, labeled)

            def loss(
                y, top, targets=targets, weight=weight, factors=factors, guesses=guesses, truth=truth, labeled=labeled
            ):
                logits = self.train_logits(y, top, factors)
                if h.local.objective == 'mean_teacher':
                    distance = np.mean((softmax(logits) - softmax(guesses)) ** 2, axis=1)
                    rows = np.where(labeled, linear.cross_entropies(logits, truth), distance)
                    return np.sum(weight * rows)
                log_q = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
                log_p = np.log(targets, where=targets > 0, out=np.zeros_like(targets))
                return np.sum(weight * np.sum(targets * (log_p - log_q), axis=1))  # KL(p || q); p = 0 counts nothing

            total += loss(y, whole['top']) / len(rows)
            of_y, of_top = linear.gradients_of(loss, [y, whole['top']])
            mu = h.local.prox if self.name == 'fedprox' else 0.0
            moved = {'mean': 0.9 * whole['mean'] + 0.1 * y.mean(axis=0)}
            for name, gradient in (('bottom', x.T @ of_y), ('top', of_top)):
                optimizers[name].lr = self.lr
                moved[name] = optimizers[name].step(whole[name], gradient + mu * (whole[name] - start[name]))
            whole |= moved
            keep = h.local.teacher_decay if h.local.objective == 'mean_teacher' else h.ema_decay
            teacher = {name: keep * teacher[name] + (1 - keep) * whole[name] for name in moved}
        if h.local.optimizer_state == 'kept':
            self.kept[client] = optimizers
        measured = {'loss_local': total}
        return whole, measured | ({'student_labels': float(trusts)} if self.name == 'fedswitch' else {})

    def labeler(self, whole, teacher, trusts):
        """The model that labels: the received one, a teacher, or the client's own."""
        if self.h.local.objective == 'pseudo_label':
            return self.student
        return whole if trusts and self.h.local.objective != 'mean_teacher' else teacher

    def seen_by_labeler(self, key, images):
        """Weak views, or the images themselves."""
        if self.h.local.objective == 'pseudo_label':
            return np.asarray(toy.VIEWS.normalize(images), np.float64).reshape(len(images), -1)
        return self.pixels('weak', rng.fold(key, 'weak'), images)

    def views_of(self, images, labeled, key):
        """Labeled rows, which come first, in the supervised view, the others in the strong one, or in a weak one."""
        if self.h.local.objective == 'supervised':
            return self.pixels('supervised', rng.fold(key, 'supervised'), images)
        view = 'weak' if self.h.local.objective in ('pseudo_label', 'mean_teacher') else 'strong'
        x, head = self.pixels(view, rng.fold(key, 'strong'), images), self.h.labeled_rows
        if head:
            own = self.pixels('supervised', rng.fold(key, 'supervised'), images[:head])
            x[:head] = np.where(labeled[:head, None], own, x[:head])
        return x

    def train_logits(self, y, top, factors):
        return (y - y.mean(axis=0)) * factors[0] @ top * factors[1]

    def targets(self, guesses, truth, labeled):
        """The distribution [B, K] that a row is drawn to: 0 where a row does not count."""
        p, h = softmax(guesses), self.h
        if h.local.objective == 'uda':
            wanted, sure = softmax(guesses / h.uda.temperature), p.max(axis=1) > h.threshold
        else:
            wanted, sure = np.eye(toy.CLASSES)[p.argmax(axis=1)], p.max(axis=1) >= h.threshold
        return np.where(labeled[:, None], np.eye(toy.CLASSES)[truth], wanted * sure[:, None])

    def weights(self, logits, truth, labeled):
        """Of the rows in the loss [B]: means over labeled rows and over the others."""
        counted = labeled.astype(float)
        if self.h.local.objective == 'uda' and self.h.uda.tsa == 'linear':
            progress = min(self.round / self.h.lr_rounds, 1.0)
            ceiling = progress * (1 - 1 / toy.CLASSES) + 1 / toy.CLASSES
            counted *= softmax(logits)[np.arange(len(truth)), truth] <= ceiling
        unlabeled = self.ramp() * self.h.consistency_weight * ~labeled / max(np.sum(~labeled), 1)
        return counted / max(counted.sum(), 1.0) + unlabeled

    def ramp(self):
        """What the unlabeled loss weighs in this round, of its last weight."""
        local = self.h.local
        if not local.ramp_rounds or self.round >= local.ramp_rounds:
            return 1.0
        if local.objective == 'pseudo_label':
            return self.round / local.ramp_rounds
        return math.exp(-5 * (1 - self.round / local.ramp_rounds) ** 2)

    def trusts_student(self, federation, rows, known, key):
        """By the labels that the received student is sure of, in the images of the round."""
        if self.h.options.mode != 'switch':
            return self.h.options.mode == 'student'
        seen = []
        for t, (read, labeled) in enumerate(zip(rows, known, strict=True)):
            x = self.pixels('weak', rng.fold(key, 'skew', t), federation.client_images[read])
            p = softmax(self.logits(self.student, x))
            seen += [
                int(row.argmax()) for row, own in zip(p, labeled, strict=True) if row.max() >= self.h.threshold > own
            ]
        return not self.asks_teacher(seen)


class OneAfterAnother(Server):
    """SplitFed's second version: the top goes from client to client in a random order, and its optimizer with it."""

    def local_phase(self, federation, ids, visits):
        self.top, self.of_top = self.student['top'], linear.Adam(self.h, self.lr)

        def turn(pair):
            return int(jax.random.bits(rng.fold(self.key, 'local', self.round, pair[0], 'turn')))

        self.order = sorted(zip(ids, visits, strict=True), key=turn)
        found = super().local_phase(federation, *zip(*self.order, strict=True))
        self.student['top'] = self.top
        return found

    def train(self, federation, client, rows, known):
        self.student = self.student | {'top': self.top}
        self.kept[client] = {'bottom': linear.Adam(self.h, self.lr), 'top': self.of_top}
        student, measured = super().train(federation, client, rows, known)
        self.top = student['top']
        return student, measured
