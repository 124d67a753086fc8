"""Rounds of SemiFL written out plainly: one client after another, sets as lists, statistics in NumPy, SGD by hand.

It shares with the package what is not under test: the network functions, the random streams and the views. Made for
`toy.model(split_index=1, top_norm=True)`, whose statistics tests/batch_norm_twin.py computes in NumPy.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.types import SplitParams
from tests import draws
from tests.batch_norm_twin import statistics
from tests.linear import Sgd
from tests.linear_local import softmax


def clipped(gradient, norm):
    total = math.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda g: g * norm / total, gradient) if norm and total > norm else gradient


def log_probability(logits, labels):
    highest = jnp.max(logits, axis=1, keepdims=True)
    q = logits - highest - jnp.log(jnp.sum(jnp.exp(logits - highest), axis=1, keepdims=True))
    return jnp.stack([q[j, label] for j, label in enumerate(labels)])


class Twin:
    """Server and clients."""

    def __init__(self, key, model, views, h, student):
        self.key, self.model, self.views, self.h, self.student = key, model, views, h, student
        self.round, self.step, self.kept, self.velocity = 0, 0, {}, None
        self.after_server = None  # the model between the server's steps and the clients, where the server is first
        self.relabeled = 0  # images that the trained models of clients would label otherwise than they were labeled

    def logits(self, variables, x, key=None, train=False):
        keys = (None, None) if key is None else (rng.fold(key, 'bottom'), rng.fold(key, 'top'))
        features, bottom = self.model.bottom(variables.bottom, x, keys[0], train)
        logits, top = self.model.top(variables.top, features, keys[1], train)
        return logits, SplitParams(bottom, top, variables.proj)

    def local_sgd(self, variables, optimizer, loss):
        """One step; the value of the loss."""

        def value(parameters):
            return loss(SplitParams(*({**a, 'params': b} for a, b in zip(variables, parameters, strict=True))))

        parameters = tuple(piece['params'] for piece in variables)
        (value, aux), gradient = jax.value_and_grad(value, has_aux=True)(parameters)
        new = optimizer.step(parameters, clipped(gradient, self.h.options.clip_norm))
        return SplitParams(*({**a, 'params': b} for a, b in zip(variables, new, strict=True))), aux

    def run_round(self, federation, ids, k_s, lr):
        first = self.h.options.order == 'server_first'
        if first:
            measured = self.serve(federation, k_s, lr)
            self.refresh(federation)
            self.after_server = self.student
            measured |= self.visit(federation, ids, lr)
        else:
            self.refresh(federation)
            measured = self.visit(federation, ids, lr)
            measured |= self.serve(federation, k_s, lr)
        self.refresh(federation)
        self.round += 1
        return measured

    def serve(self, federation, k_s, lr):
        optimizer, total = self.kept.get('server', Sgd(self.h, lr)), 0.0
        optimizer.lr = lr
        if self.h.local.optimizer_state == 'kept':
            self.kept['server'] = optimizer
        for _ in range(k_s):
            rows = self.server_rows(len(federation.server_labels))
            key = rng.fold(self.key, 'supervised', self.step)
            labels = np.asarray(federation.server_labels)[rows]
            x = self.views.supervised(rng.fold(key, 'views'), federation.server_images[rows])
            x = self.views.normalize(x)

            def loss(variables, x=x, labels=labels, key=key):
                logits, _ = self.logits(variables, x, rng.fold(key, 'dropout'), True)
                value = -jnp.mean(log_probability(logits, labels))
                return value, value

            self.student, value = self.local_sgd(self.student, optimizer, loss)
            self.step, total = self.step + 1, total + float(value)
        return {'loss_supervised': total / k_s}

    def server_rows(self, count):
        """What the next step reads; in local epochs, every pass over the labels ends with a short batch."""
        size = self.h.server_batch_size
        if not self.h.local.epochs:
            return draws.server_rows(self.key, self.step, size, count)
        batches = []
        while len(batches) <= self.step:
            number = len(batches) // math.ceil(count / size)
            word = jax.random.bits(rng.fold(self.key, 'server_batches'))
            order = draws.read(word, number * count + jnp.arange(count), jnp.int32(count))
            batches += [order[start : start + size] for start in range(0, count, size)]
        return batches[self.step]

    def refresh(self, federation):
        """Statistics over batches of all images in one line, read in an order that the package draws."""
        images = [np.asarray(federation.server_images)]
        size = self.h.options.pass_batch_size
        if self.h.options.batch_norm_data == 'all':
            images += [
                np.asarray(federation.client_images)[np.asarray(row)[:count]]
                for row, count in zip(federation.index, np.asarray(federation.size), strict=True)
            ]
        else:
            size = min(size, len(images[0]))
        images = np.concatenate(images)
        batches = math.ceil(len(images) / size)
        word = jax.random.bits(rng.fold(self.key, 'batch_norm', 'order'))
        order = np.asarray(draws.read(word, jnp.arange(batches * size), jnp.int32(len(images))))
        assert set(order) == set(range(len(images)))
        x = np.asarray(self.views.normalize(images[order])).reshape(batches, size, *images.shape[1:])
        self.student = self.with_statistics(x)

    def with_statistics(self, batches):
        found = [jnp.float32(value) for value in statistics(self.student, batches, ddof=0)]
        return self.student._replace(
            bottom={**self.student.bottom, 'batch_stats': {'layer_0': {'norm': {'mean': found[0], 'var': found[1]}}}},
            top={**self.student.top, 'batch_stats': {'layer_1': {'norm': {'mean': found[2], 'var': found[3]}}}},
        )

    def visit(self, federation, ids, lr):
        work_of_client = {client: self.train(federation, client, lr) for client in ids}
        trained = [work for work in work_of_client.values() if work['student'] is not None]
        measured = {
            'clients_sitting_out': 1 - len(trained) / len(ids),
            'mask_rate': sum(w['fix'] for w in work_of_client.values())
            / sum(w['images'] for w in work_of_client.values()),
        }
        if not trained:
            return measured
        old = tuple(piece['params'] for piece in self.student)
        new = [tuple(piece['params'] for piece in work['student']) for work in trained]
        average = jax.tree.map(lambda *x: sum(x) / len(x), *new)
        step = jax.tree.map(lambda a, b: a - b, old, average)
        if self.velocity is not None:
            step = jax.tree.map(lambda v, g: self.h.options.global_momentum * v + g, self.velocity, step)
        self.velocity = step
        moved = jax.tree.map(lambda a, b: a - b, old, step)
        self.student = SplitParams(*({**a, 'params': b} for a, b in zip(self.student, moved, strict=True)))
        names = ['loss_local', 'loss_fix', 'loss_mix', 'client_steps']
        names += ['client_images'] if self.h.local.epochs else []
        return measured | {name: np.mean([work[name] for work in trained]) for name in names}

    def label(self, variables, images, key):
        """Class of every image, and whether it is confident."""
        size, probabilities = self.h.options.pass_batch_size, []
        for t in range(math.ceil(len(images) / size)):
            places = np.minimum(t * size + np.arange(size), len(images) - 1)
            x = self.views.normalize(self.views.weak(rng.fold(key, 'label', t), images[places]))
            probabilities += list(softmax(np.asarray(self.logits(variables, x)[0], np.float64)))
        return [(int(p.argmax()), p.max() >= self.h.threshold) for p in probabilities[: len(images)]]

    def train(self, federation, client, lr):
        h, key = self.h, rng.fold(rng.fold(self.key, 'local', self.round), client)
        images = federation.client_images[federation.index[client][: int(federation.size[client])]]
        guesses = self.label(self.student, images, key)
        fix = [position for position, (_, confident) in enumerate(guesses) if confident]
        work = {'student': None, 'fix': len(fix), 'images': len(images)}
        if not fix:
            return work
        drawn = [jax.random.randint(rng.fold(key, 'sets', j), (), 0, len(images)) for j in range(len(fix))]
        mix, variables = [int(position) for position in drawn], self.student
        optimizer, losses = self.kept.get(client, Sgd(h, lr)), []
        optimizer.lr = lr
        size, a = h.batch_size, h.options.mixup_alpha
        if h.local.epochs:
            batches = self.epochs(key, fix, len(images))
        else:
            words = [jax.random.bits(rng.fold(key, name)) for name in ('fix', 'mix')]
            batches = []
            for t in range(min(h.k_u, math.ceil(h.options.max_passes * len(fix) / size))):
                offset, count = t * size + jnp.arange(size), jnp.int32(len(fix))
                places = [draws.read(word, offset, count) for word in words]
                batches.append([[indices[i] for i in order] for indices, order in zip((fix, mix), places, strict=True)])
        for t, rows in enumerate(batches):
            step_key = rng.fold(key, t)
            labels, others = ([guesses[position][0] for position in places] for places in rows)
            strong = self.views.normalize(self.views.strong(rng.fold(step_key, 'strong'), images[np.array(rows[0])]))
            weak = self.views.normalize(self.views.weak(rng.fold(step_key, 'weak'), images[np.array(rows[0])]))
            other = self.views.normalize(self.views.weak(rng.fold(step_key, 'other'), images[np.array(rows[1])]))
            share = float(jax.random.beta(rng.fold(step_key, 'share'), a, a))
            mixed = share * weak + (1 - share) * other

            def loss(now, batch=(strong, mixed, labels, others, share), step_key=step_key):
                strong, mixed, labels, others, share = batch
                q = self.logits(now, strong, rng.fold(step_key, 'dropout'), True)[0]
                p = self.logits(now, mixed, rng.fold(step_key, 'dropout_mix'), True)[0]
                loss_fix = -jnp.mean(log_probability(q, labels))
                loss_mix = -jnp.mean(share * log_probability(p, labels) + (1 - share) * log_probability(p, others))
                return loss_fix + loss_mix, (loss_fix, loss_mix)

            variables, step_losses = self.local_sgd(variables, optimizer, loss)
            losses.append([float(x) for x in step_losses])
        if h.local.optimizer_state == 'kept':
            self.kept[client] = optimizer
        self.relabeled += sum(a != b for a, b in zip(guesses, self.label(variables, images, key), strict=True))
        of_fix, of_mix = np.mean(losses, axis=0)
        return work | {
            'student': variables,
            'loss_local': of_fix + of_mix,
            'loss_fix': of_fix,
            'loss_mix': of_mix,
            'client_steps': len(batches),
            'client_images': sum(len(batch_fix) for batch_fix, _ in batches),
        }

    def epochs(self, key, fix, images):
        """[(places of FIX, places of MIX)] for every batch of all passes; the last one of a pass may be short."""
        size, batches = self.h.batch_size, []
        word = jax.random.bits(rng.fold(key, 'fix'))
        for number in range(self.h.local.epochs):
            order = draws.read(word, number * len(fix) + jnp.arange(len(fix)), jnp.int32(len(fix)))
            for start in range(0, len(fix), size):
                batch_fix = [fix[i] for i in order[start : start + size]]
                drawn = jax.random.randint(rng.fold(key, len(batches), 'mix'), (size,), 0, images)
                batches.append((batch_fix, [int(position) for position in drawn[: len(batch_fix)]]))
        return batches


class LinearTwin(Twin):
    """With the model of tests/linear.py, whose statistics are one mean."""

    def with_statistics(self, batches):
        y = batches.reshape(*batches.shape[:2], -1) @ np.asarray(self.student.bottom['params']['w'])
        mean = jnp.float32(y.mean(axis=(0, 1)))  # all batches are of one size
        return self.student._replace(bottom={**self.student.bottom, 'batch_stats': {'mean': mean}})
