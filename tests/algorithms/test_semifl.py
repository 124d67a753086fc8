"""SemiFL: rounds against NumPy (tests/helpers/linear.py), who sits out, and its sets and steps by hand."""

import dataclasses
import functools
import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms
from semisfl_jax.algorithms.semifl import SemiFL, draw_sets, pair_in_epochs
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import HParams, Local, optimizer
from semisfl_jax.costs import price_round
from semisfl_jax.costs.rounds import drop
from semisfl_jax.training import diagnostics
from tests.helpers import draws, linear, runs, toy
from tests.helpers.linear import Sgd, factor
from tests.helpers.linear_local import softmax
from tests.helpers.marks import slow_but
from tests.helpers.prices import RESNET9, STATISTICS, digits, everybody, price, small
from tests.helpers.rows import STUDENT, Row
from tests.helpers.trees import assert_trees_close

ROWS = {'semifl': Row(f'{STUDENT} clients server', f'{STUDENT} clients server')}  # clients keep their optimizers

KEY = rng.root(0)
FEDERATION = toy.federation()
# Several batches to label a client, and the last one filled up; one pass over the confident images
PASS = {'pass_batch_size': 8, 'max_passes': 1}
SMALL = dataclasses.replace(toy.HPARAMS, k_u=2, num_clients=5, threshold=0.55, lr_min=0.02, options=SemiFL(**PASS))


@functools.cache
def build(**changes):
    """Method and compiled round."""
    algorithm = algorithms.build('semifl', linear.model(), toy.VIEWS, dataclasses.replace(SMALL, **changes))
    return algorithm, jax.jit(algorithm.round)


def first(algorithm):
    """The first state, its logits louder than they come, so that some are confident."""
    state = algorithm.init(KEY)
    return state.replace(student=state.student._replace(top=jax.tree.map(lambda w: 2.5 * w, state.student.top)))


def play(ids, state=None, k_s=1, weight=None, federation=FEDERATION, **changes):
    """One round; state and metrics."""
    algorithm, run = build(**changes)
    cohort = toy.cohort(ids)
    cohort = cohort if weight is None else cohort._replace(weight=jnp.asarray(weight, jnp.float32))
    return run(KEY, first(algorithm) if state is None else state, federation, cohort, jnp.int32(k_s))


# --- rounds


class Server(linear.Server):
    """Server and clients, one after another; sets are lists."""

    def __init__(self, h, student):
        super().__init__(KEY, h, student, 'student')
        self.kept, self.velocity, self.after_server = {}, None, None

    def run_round(self, federation, ids, k_s):
        self.federation, self.lr, found = jax.device_get(federation), self.learning_rate(), {}
        if self.h.options.order == 'server_first':
            found |= self.serve(k_s)
        self.refresh()
        self.after_server = dict(self.student)
        if self.round >= self.h.pre_rounds:
            found |= self.visit(ids)
        if self.h.options.order != 'server_first':
            found |= self.serve(k_s)
        self.refresh()
        self.round += 1
        return found

    def optimizer(self, whose):
        made = self.kept.get(whose, Sgd(self.h, self.lr))
        made.lr = self.lr
        if self.h.local.optimizer_state == 'kept':
            self.kept[whose] = made
        return made

    def descend(self, w, optimizer, loss):
        """A step of (bottom, top), its gradient clipped."""
        gradient = linear.gradients_of(loss, w)
        total, limit = math.sqrt(sum(np.sum(g**2) for g in gradient)), self.h.options.clip_norm
        if limit and total > limit:
            gradient = [g * limit / total for g in gradient]
        return optimizer.step(w, gradient)

    def parameters(self):
        return [self.student[name] for name in ('bottom', 'top')]

    def serve(self, k_s):
        total, optimizer = 0.0, self.optimizer('server')
        for _ in range(k_s):
            rows, key = self.server_rows(len(self.federation.server_labels)), rng.fold(KEY, 'supervised', self.t)
            x = self.pixels('supervised', rng.fold(key, 'views'), self.federation.server_images[rows])
            factors = dropout(key, 'dropout')

            def loss(*w, x=x, labels=self.federation.server_labels[rows], factors=factors):
                return np.mean(linear.cross_entropies(trained(w, x, factors), labels))

            total += loss(*self.parameters()) / k_s
            self.student['bottom'], self.student['top'] = self.descend(self.parameters(), optimizer, loss)
            self.t += 1
        return {'loss_supervised': total}

    def server_rows(self, count):
        """What the next step reads; in local epochs, every pass over the labels ends with a short batch."""
        size = self.h.server_batch_size
        if not self.h.local.epochs:
            return draws.server_rows(KEY, self.t, size, count)
        number, step = divmod(self.t, math.ceil(count / size))
        word = jax.random.bits(rng.fold(KEY, 'server_batches'))
        order = draws.read(word, number * count + jnp.arange(count), jnp.int32(count))
        return np.asarray(order)[step * size :][:size]

    def refresh(self):
        """The mean over batches of all images in one line, read in an order that the package draws."""
        data, size, images = self.federation, self.h.options.pass_batch_size, [self.federation.server_images]
        if self.h.options.batch_norm_data == 'all':
            images += [data.client_images[row[:count]] for row, count in zip(data.index, data.size, strict=True)]
        images = np.concatenate(images)
        word, count = jax.random.bits(rng.fold(KEY, 'batch_norm', 'order')), math.ceil(len(images) / size) * size
        order = np.asarray(draws.read(word, jnp.arange(count), jnp.int32(len(images))))
        x = np.asarray(toy.VIEWS.normalize(images[order]), np.float64).reshape(count, -1)
        self.student['mean'] = (x @ self.student['bottom']).mean(axis=0)

    def visit(self, ids):
        works = [self.train(client) for client in ids]
        busy = [work for work in works if work['fix']]
        found = {'clients_sitting_out': 1 - len(busy) / len(ids)}
        found['mask_rate'] = sum(work['fix'] for work in works) / sum(work['images'] for work in works)
        for place, name in enumerate(('bottom', 'top')):
            step = self.student[name] - np.mean([work['w'][place] for work in busy], axis=0)
            if self.velocity and name in self.velocity:
                step = self.h.options.global_momentum * self.velocity[name] + step
            self.velocity = (self.velocity or {}) | {name: step}
            self.student[name] = self.student[name] - step
        names = ['loss_local', 'loss_fix', 'loss_mix', 'client_steps']
        names += ['client_images'] if self.h.local.epochs else []
        return found | {name: np.mean([work[name] for work in busy]) for name in names}

    def label(self, images, key):
        """Probabilities of every image."""
        size, found = self.h.options.pass_batch_size, []
        for t in range(math.ceil(len(images) / size)):
            places = np.minimum(t * size + np.arange(size), len(images) - 1)
            x = self.pixels('weak', rng.fold(key, 'label', t), images[places])
            found.append(softmax((x @ self.student['bottom'] - self.student['mean']) @ self.student['top']))
        return np.concatenate(found)[: len(images)]

    def train(self, client):
        h, key, data = self.h, rng.fold(KEY, 'local', self.round, client), self.federation
        images = data.client_images[data.index[client][: int(data.size[client])]]
        p = self.label(images, key)
        guesses, fix = p.argmax(axis=1), np.flatnonzero(p.max(axis=1) >= h.threshold)
        if not len(fix):
            return {'fix': 0, 'images': len(images)}
        w, optimizer, losses = self.parameters(), self.optimizer(client), []
        batches = list(self.batches(key, fix, len(images)))
        for t, (one, two) in enumerate(batches):
            step_key, a = rng.fold(key, t), h.options.mixup_alpha
            views = ('strong', 'strong', one), ('weak', 'weak', one), ('weak', 'other', two)
            strong, weak, other = (self.pixels(view, rng.fold(step_key, name), images[i]) for view, name, i in views)
            share = float(jax.random.beta(rng.fold(step_key, 'share'), a, a))
            mixed, labels = share * weak + (1 - share) * other, (guesses[one], guesses[two])

            factors = [dropout(step_key, name) for name in ('dropout', 'dropout_mix')]

            def both(*w, now=(strong, mixed, labels, share, factors)):
                strong, mixed, (labels, others), share, factors = now
                logits = trained(w, mixed, factors[1])
                of_mix = [np.mean(linear.cross_entropies(logits, each)) for each in (labels, others)]
                of_fix = np.mean(linear.cross_entropies(trained(w, strong, factors[0]), labels))
                return of_fix, share * of_mix[0] + (1 - share) * of_mix[1]

            losses.append(both(*w))
            w = self.descend(w, optimizer, lambda *w, both=both: sum(both(*w)))
        of_fix, of_mix = np.mean(losses, axis=0)
        counts = {'client_steps': len(batches), 'client_images': sum(len(one) for one, _ in batches)}
        measured = {'loss_local': of_fix + of_mix, 'loss_fix': of_fix, 'loss_mix': of_mix}
        return {'w': w, 'fix': len(fix), 'images': len(images), **measured, **counts}

    def batches(self, key, fix, images):
        """(places of FIX, places of MIX) of every batch. In epochs, the last of a pass may be short, and MIX is new."""
        h, size, count = self.h, self.h.batch_size, jnp.int32(len(fix))
        word, other = (jax.random.bits(rng.fold(key, name)) for name in ('fix', 'mix'))
        if h.local.epochs:
            number = 0
            for epoch in range(h.local.epochs):
                order = np.asarray(draws.read(word, epoch * len(fix) + jnp.arange(len(fix)), count))
                for start in range(0, len(fix), size):
                    one = fix[order[start : start + size]]
                    drawn = jax.random.randint(rng.fold(key, number, 'mix'), (size,), 0, images)
                    yield one, np.asarray(drawn)[: len(one)]
                    number += 1
            return
        mix = [int(jax.random.randint(rng.fold(key, 'sets', j), (), 0, images)) for j in range(len(fix))]
        for t in range(min(h.k_u, math.ceil(h.options.max_passes * len(fix) / size))):
            places = t * size + jnp.arange(size)
            yield fix[draws.read(word, places, count)], np.array(mix)[draws.read(other, places, count)]


def dropout(key, name):
    return [factor(rng.fold(key, name, piece)) for piece in ('bottom', 'top')]


def trained(w, x, factors):
    """Logits in training."""
    y = x @ w[0]
    return (y - y.mean(axis=0)) * factors[0] @ w[1] * factors[1]


CASES = {
    'default': {},
    'server first, alone in the first round': {'options': SemiFL(order='server_first', **PASS), 'pre_rounds': 1},
    'clients first, epochs, keeps momentum': {
        'local': Local(epochs=2, optimizer_state='kept'),
        'options': SemiFL(order='clients_first', batch_norm_data='server', clip_norm=0.3, global_momentum=0.9, **PASS),
        'lr_min': 0.01,
    },
}


@pytest.mark.parametrize('case', slow_but(CASES, 'default'))
def test_rounds_equal_the_ones_in_numpy(case):
    algorithm, run = build(**CASES[case])
    state = first(algorithm)
    server, rates = Server(dataclasses.replace(SMALL, **CASES[case]), state.student), []
    for ids in ([4, 0, 2], [1, 3, 4]):
        state, metrics = run(KEY, state, FEDERATION, toy.cohort(ids), jnp.int32(2))
        for name, value in server.run_round(FEDERATION, ids, 2).items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
        linear.assert_close(state, server, ('student',))
        rates.append(float(metrics['mask_rate']))
    assert all(0 < rate < 1 for rate in rates[CASES[case].get('pre_rounds', 0) :]), rates
    assert algorithm.headline == 'student'
    expected = {'student': server.student}
    if 'server first' in case:  # two moments of one round
        expected['after_server'] = server.after_server
    predictions = algorithm.predict(state, FEDERATION.client_images)
    x = np.asarray(toy.VIEWS.normalize(FEDERATION.client_images), np.float64).reshape(-1, int(np.prod(toy.SHAPE)))
    assert predictions.keys() == expected.keys()
    for name, whole in expected.items():
        np.testing.assert_allclose(predictions[name], server.bottom(whole, x)[0] @ whole['top'], rtol=5e-3, atol=5e-3)


@pytest.mark.slow
def test_where_a_round_ends_with_the_average_a_run_evaluates_after_the_server_too(tmp_path):
    changes = {'threshold': 0.115, 'semifl__order': 'server_first', 'diagnostics_every': 1}  # some are confident soon
    assert runs.run(tmp_path, algorithm='semifl', rounds=2, **changes) == 0
    for number, record in enumerate(runs.records(tmp_path), start=1):
        arrays = diagnostics.load(tmp_path, number)
        assert not np.array_equal(arrays['student_test'], arrays['after_server_test'])
        for name in ('student', 'after_server'):
            table = arrays[f'{name}_test']
            assert record[f'{name}_accuracy'] == pytest.approx(table.trace() / table.sum())
    assert json.loads((tmp_path / 'summary.json').read_text())['headline'] == 'student'


KEPT = {'local': Local(epochs=1, optimizer_state='kept'), 'threshold': 0.75}


def kept(ids, state=None, **options):
    """A round of up to five clients, the others being padding."""
    padding = 5 - len(ids)
    return play([*ids, *[ids[0]] * padding], state, weight=[1.0] * len(ids) + [0.0] * padding, **KEPT, **options)


@pytest.mark.slow
def test_a_client_without_a_confident_image_sits_out():
    """It is in no average and keeps its optimizer, and its images count in the mask rate."""
    algorithm, _ = build(**KEPT)
    idle, busy, begin = 0, 4, first(algorithm)
    begin = begin.replace(clients=jax.tree.map(lambda x: x + 0.01, begin.clients))
    fresh, _ = play([idle] * 5, begin, k_s=0, weight=[0.0] * 5, **KEPT)  # the same weights, with statistics
    logits = algorithm.predict(fresh, FEDERATION.client_images)['student']
    doubtful = jnp.argsort(jnp.max(jax.nn.softmax(logits), axis=-1))[: int(FEDERATION.size[idle])]
    index = FEDERATION.index.at[idle, : len(doubtful)].set(doubtful)
    options = {'k_s': 0, 'federation': FEDERATION.replace(index=index)}
    _, metrics = kept([idle], begin, **options)
    assert (metrics['clients_sitting_out'], metrics['mask_rate']) == (1, 0)
    alone, before = kept([busy], begin, **options)
    beside, metrics = kept([busy, idle], begin, **options)
    assert_trees_close(beside.student, alone.student, rtol=1e-6, atol=1e-7)
    assert (before['clients_sitting_out'], metrics['clients_sitting_out']) == (0, 0.5)
    sizes = np.asarray(FEDERATION.size)
    expected = before['mask_rate'] * sizes[busy] / (sizes[busy] + sizes[idle])
    np.testing.assert_allclose(metrics['mask_rate'], expected, rtol=1e-5)
    for old, new in zip(jax.tree.leaves(begin.clients), jax.tree.leaves(beside.clients), strict=True):
        np.testing.assert_array_equal(old[idle], new[idle])
        assert not np.array_equal(old[busy], new[busy])


@pytest.mark.slow
def test_when_all_sit_out_the_server_makes_no_step():
    """Not even one of its momentum, which it keeps."""
    never = {'threshold': 1.0}
    start = first(build(**never)[0])
    start = start.replace(server=jax.tree.map(lambda x: x + 0.1, start.server))
    state, metrics = play([0, 2, 4], start, k_s=3, **never)
    assert (metrics['clients_sitting_out'], metrics['loss_local']) == (1, 0)
    assert np.isnan(metrics['pseudo_label_accuracy'])
    chex.assert_trees_all_equal(state.server, start.server)


# --- by hand


CONFIDENT = np.array([0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0], bool)  # of a client of 9 images, in a table of 12


def test_fix_is_what_is_confident_and_mix_is_drawn_from_all():
    draw = jax.jit(jax.vmap(lambda key: draw_sets(key, jnp.asarray(CONFIDENT), jnp.int32(9))))
    sets = jax.device_get(draw(jax.random.split(jax.random.key(0), 4000)))
    assert set(sets.num_confident) == {4}
    np.testing.assert_array_equal(sets.fix[:, :4], np.tile([1, 4, 5, 7], (4000, 1)))
    mix = sets.mix[:, :4]
    assert mix.min() == 0
    assert mix.max() == 8
    counts = np.bincount(mix.ravel(), minlength=9)
    # chi-square of 8 degrees of freedom: above 26.1 once in a thousand times
    assert np.sum((counts - 16000 / 9) ** 2) / (16000 / 9) < 26.1
    distinct = np.mean([len(set(row)) == 4 for row in mix])  # 9 * 8 * 7 * 6 / 9^4 with replacement
    np.testing.assert_allclose(distinct, 9 * 8 * 7 * 6 / 9**4, atol=0.03)


def test_in_epochs_mix_is_drawn_anew_at_every_access():
    """From all images, with replacement, whatever was drawn before: `MixDataset` of the authors' code."""
    sets = draw_sets(jax.random.key(1), jnp.asarray(CONFIDENT), jnp.int32(9))  # 4 confident images
    draw = jax.jit(jax.vmap(lambda t: pair_in_epochs(jax.random.key(2), sets, jnp.int32(9), t, 3)))
    fix, mix, valid = jax.device_get(draw(jnp.arange(4000)))  # 2,000 passes of batches of 3 and 1
    np.testing.assert_array_equal(valid, np.tile([[1, 1, 1], [1, 0, 0]], (2000, 1)))
    for read in np.split(fix[valid], 2000):
        np.testing.assert_array_equal(np.sort(read), [1, 4, 5, 7])
    by_pass = mix[valid].reshape(2000, 4)
    assert len({tuple(sorted(row)) for row in by_pass}) > 300  # of 9 * 10 * 11 * 12 / 24 = 495; once drawn: 1
    counts = np.bincount(by_pass.ravel(), minlength=9)
    assert len(counts) == 9
    # chi-square of 8 degrees of freedom: above 26.1 once in a thousand times
    assert np.sum((counts - 8000 / 9) ** 2) / (8000 / 9) < 26.1
    distinct = np.mean([len(set(row)) == 4 for row in by_pass])  # 9 * 8 * 7 * 6 / 9^4 with replacement
    np.testing.assert_allclose(distinct, 9 * 8 * 7 * 6 / 9**4, atol=0.04)


def test_a_long_gradient_is_clipped_before_the_l2_term():
    """A gradient of norm 5 becomes one of norm 1, before the L2 term; a short one stays. Other methods do not clip."""
    plain = dataclasses.replace(SMALL, momentum=0.0, nesterov=False, weight_decay=0.5)
    for gradient, share in ((np.array([3.0, 4.0]), 0.2), (np.array([0.3, 0.4]), 1.0)):
        w = jnp.array([1.0, -2.0])
        for norm, scale in ((1.0, share), (0.0, 1.0)):
            sgd = optimizer(dataclasses.replace(plain, clip_norm=norm), jnp.float32(0.1))
            updates, _ = sgd.update(jnp.float32(gradient), sgd.init(w), w)
            np.testing.assert_allclose(updates, -0.1 * (scale * gradient + 0.5 * np.array([1.0, -2.0])), rtol=1e-6)
    assert HParams().clip_norm == 0.0


def test_bytes_and_work_of_semifl():
    """The model down, its parameters up from those that do not sit out; statistics by the images of all clients."""
    at_server = small(options={'batch_norm_data': 'server'}, local={'epochs': 0})
    cost = price('semifl', at_server)
    assert (cost.download, cost.upload, cost.setup_upload) == (RESNET9 + STATISTICS, RESNET9, 0)
    cost = price('semifl', at_server._replace(metrics={'clients_sitting_out': np.float32(0.3), 'client_steps': 7.0}))
    assert 10 * cost.upload == pytest.approx(7 * RESNET9, rel=1e-12)
    metrics = {'clients_sitting_out': np.float32(0), 'client_steps': np.float32(2)}
    every = at_server._replace(steps=np.array([8, 8]), images=np.array([100, 100]))
    planned, made = (price('semifl', context) for context in (every, every._replace(metrics=metrics, survivors=2)))
    np.testing.assert_allclose(made.step_work * 8, planned.step_work * 2, rtol=1e-12)  # 2 of 8 iterations
    cost = price('semifl', small(options={'batch_norm_data': 'all'}, local={'epochs': 0}))
    assert (cost.download, cost.setup_upload) == (RESNET9 + STATISTICS, STATISTICS)
    assert (cost.inactive_download, cost.inactive_upload) == (RESNET9, STATISTICS)
    model = digits(algorithm='semifl', model__name='resnet9', data__client_labels=0)
    failed = drop(everybody(model), np.array([0, *[np.inf] * 4]), never=True)  # one of five, before the round
    bill = price_round(model, 0, 4, failed)
    assert bill.bytes_down == 4 * (RESNET9 + STATISTICS) + (10 - 4) * RESNET9
    assert bill.bytes_up == 10 * STATISTICS + 4 * RESNET9  # before the round, all may send
    alone = price_round(model, 0, 20, None)
    assert (alone.bytes_up, alone.bytes_down) == (10 * STATISTICS, 10 * RESNET9)


def test_work_of_passes_over_confident_images():
    """Five passes over confident images, each in a strong view and in a mixture, however many batches they make."""
    context = small(options={'batch_norm_data': 'server'}, local={'epochs': 5}, batch_size=10)
    context = context._replace(images=np.array([100, 42]), steps=np.array([50, 21]))  # steps: full batches of 10
    image = 2 * context.pieces.whole_work.train
    before = price('semifl', context)  # all may be confident
    np.testing.assert_allclose(before.step_work * context.steps, [500 * image, 210 * image], rtol=1e-12)
    # client 0 has 30 confident images, client 1 two: 5 (3 + 1) steps in all, 5 (30 + 2) images
    metrics = {'clients_sitting_out': 0.0, 'client_steps': 10.0, 'client_images': 80.0}
    after = price('semifl', context._replace(metrics=metrics, survivors=2))
    np.testing.assert_allclose(np.sum(after.step_work * context.steps), 5 * 32 * image, rtol=1e-12)
    # client 1 sits out: a mean over client 0 alone
    metrics = {'clients_sitting_out': 0.5, 'client_steps': 15.0, 'client_images': 150.0}
    after = price('semifl', context._replace(metrics=metrics, survivors=2))
    np.testing.assert_allclose(np.sum(after.step_work * context.steps), 5 * 30 * image, rtol=1e-12)
