"""SplitFed against trainings written out by hand: one whole model, several averaged, one after another."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import launch
from configs import default
from semisfl_jax import algorithms, core
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms.splitfed import SplitFed
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import Local
from semisfl_jax.core.types import LOCAL_CLIENTS
from tests import draws, runs, toy, twin
from tests.marks import slow_but
from tests.rows import STUDENT, Row
from tests.trees import assert_trees_close

ROW = Row(STUDENT, STUDENT, unlabeled=False, by_images=True)

IDS = [1, 3, 4]  # client n of the toy federation has n labeled images, so client 0 has none
PIECES = ('bottom', 'top')
SUPERVISED = dataclasses.replace(toy.HPARAMS, labeled_rows=toy.HPARAMS.batch_size, server_trains=False)


def start(version='v1', split_index=None, axis=LOCAL_CLIENTS, top_norm=False, name='splitfed', **changes):
    hparams = dataclasses.replace(SUPERVISED, options=SplitFed(version), **changes)
    model = toy.model(split_index, top_norm=top_norm)
    algorithm = algorithms.build(name, model, toy.VIEWS, hparams, axis)
    return algorithm, hparams, model, algorithm.init(rng.root(0))


@functools.cache
def program(**options):
    """The compiled round and the first state."""
    algorithm, _, _, state = start(**options)
    return jax.jit(algorithm.round), state


def one_round(ids=IDS, weight=None, federation=None, index=0, **options):
    """State before, state after and metrics of round `index` (0-based)."""
    run, state = program(**options)
    state = state.replace(round=jnp.int32(index))
    cohort = toy.cohort(ids)
    if weight is not None:
        cohort = cohort._replace(weight=jnp.asarray(weight, jnp.float32))
    federation = toy.federation(labels_at_clients=True) if federation is None else federation
    after, metrics = run(rng.root(0), state, federation, cohort, jnp.int32(0))
    return state, after, metrics


class Optimizer:
    """SGD of the twin, or PyTorch's Adam in five lines."""

    def __init__(self, hparams, lr):
        self.h, self.lr, self.sgd, self.t = hparams, lr, twin.Sgd(hparams, lr), 0

    def step(self, parameters, gradient):
        if self.h.optimizer == 'sgd':
            return self.sgd.step(parameters, gradient)
        gradient = jax.tree.map(lambda g, w: g + self.h.weight_decay * w, gradient, parameters)
        if self.t == 0:
            self.m = self.v = jax.tree.map(jnp.zeros_like, gradient)
        self.t += 1
        b1, b2 = self.h.momentum, 0.999
        self.m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, self.m, gradient)
        self.v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, self.v, gradient)

        def move(w, m, v):
            return w - self.lr * (m / (1 - b1**self.t)) / (jnp.sqrt(v / (1 - b2**self.t)) + 1e-8)

        return jax.tree.map(move, parameters, self.m, self.v)


@functools.cache
def whole_model_gradient(model):
    """Gradient of the mean cross-entropy of the uncut model, its moved statistics and the loss."""

    def loss(parameters, bottom, top, x, labels, dropout):
        bottom, top = {**bottom, 'params': parameters[0]}, {**top, 'params': parameters[1]}
        features, bottom = model.bottom(bottom, x, rng.fold(dropout, 'bottom'), True)
        logits, top = model.top(top, features, rng.fold(dropout, 'top'), True)
        value = sum(twin.cross_entropy(logits[j], labels[j]) for j in range(len(x))) / len(x)
        return value, (bottom, top, value)

    return jax.jit(jax.grad(loss, has_aux=True))


def stream_of(client, *path, index=0):
    """Of a client in round `index`."""
    return rng.fold(rng.root(0), 'local', index, client, *path)


def train_alone(client, bottom, top, hparams, model, optimizers, index=0):
    """The steps of a client's whole model: bottom, top and losses. `optimizers`: of bottom and top.

    Client n has n images: `epochs` of them in batches of 4, or K_u batches.
    """
    federation, key = toy.federation(labels_at_clients=True), rng.root(0)
    rows, labeled = draws.client_rows(key, federation, toy.cohort([client]), hparams.batches)
    assert labeled.all()
    held = np.asarray(federation.labeled_index[client][: federation.labeled_size[client]])
    epochs = hparams.local.epochs
    losses = []
    for t in range(-(-epochs * client // 4) if epochs else hparams.k_u):
        batch = np.asarray(rows[0, t])
        assert set(batch) <= set(held)
        stream = stream_of(client, t, index=index)
        x = toy.VIEWS.normalize(toy.VIEWS.supervised(rng.fold(stream, 'supervised'), federation.client_images[batch]))
        parameters = bottom['params'], top['params']
        gradient, (bottom, top, value) = whole_model_gradient(model)(
            parameters, bottom, top, x, federation.client_labels[batch], rng.fold(stream, 'dropout')
        )
        new = [optimizer.step(*pair) for optimizer, *pair in zip(optimizers, parameters, gradient, strict=True)]
        bottom, top = {**bottom, 'params': new[0]}, {**top, 'params': new[1]}
        losses.append(float(value))
    return bottom, top, losses


def mean(trees):
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees)


def assert_pieces_close(student, bottom, top, **tolerance):
    assert_trees_close(student.bottom, bottom, **(tolerance or {'rtol': 1e-4, 'atol': 1e-6}))
    assert_trees_close(student.top, top, **(tolerance or {'rtol': 1e-4, 'atol': 1e-6}))


BY_IMAGES = Local(epochs=2, weighting='samples')
ADAM = {'optimizer': 'adam', 'lr': 1e-3, 'lr_min': 1e-3, 'nesterov': False}


@pytest.mark.parametrize(
    ('version', 'changes'),
    slow_but(
        [
            ('v1', {}),
            ('v1', {'split_index': 1, 'top_norm': True}),
            ('v1', {'split_index': 3} | ADAM),
            ('v2', {}),
            ('v2', {'split_index': 1, 'top_norm': True}),
        ]
    ),
)
def test_one_client_is_plain_training_at_every_cut(version, changes):
    """One optimizer for the whole model, as if it had not been cut."""
    _, hparams, model, state = start(version, **changes)
    optimizers = [Optimizer(hparams, hparams.lr) for _ in PIECES]
    bottom, top, losses = train_alone(4, *state.student[:2], hparams, model, optimizers)
    _, after, metrics = one_round([4], version=version, **changes)
    assert_pieces_close(after.student, bottom, top)
    np.testing.assert_allclose(metrics['loss_local'], np.mean(losses), rtol=1e-5)


@pytest.mark.slow
def test_v1_averages_trainings_that_know_nothing_of_each_other():
    _, hparams, model, state = start('v1')
    alone = [
        train_alone(i, *state.student[:2], hparams, model, [Optimizer(hparams, hparams.lr) for _ in PIECES])
        for i in IDS
    ]
    _, after, metrics = one_round(version='v1')
    assert_pieces_close(after.student, *(mean([part[side] for part in alone]) for side in (0, 1)))
    np.testing.assert_allclose(metrics['loss_local'], np.mean([part[2] for part in alone]), rtol=1e-5)
    assert metrics.keys() == {'lr', 'loss_local'}


@pytest.mark.slow
def test_v1_by_images_for_epochs():
    """2 epochs of 1, 3 and 4 images are 1, 2 and 2 batches; the clients count by their images."""
    _, hparams, model, state = start(local=BY_IMAGES)
    alone = [
        train_alone(i, *state.student[:2], hparams, model, [Optimizer(hparams, hparams.lr) for _ in PIECES])
        for i in IDS
    ]
    assert [len(losses) for *_, losses in alone] == [1, 2, 2]
    _, after, _ = one_round(local=BY_IMAGES)
    expected = [
        jax.tree.map(lambda a, b, c: (a + 3 * b + 4 * c) / 8, *(part[side] for part in alone)) for side in (0, 1)
    ]
    assert_pieces_close(after.student, *expected)


@pytest.mark.slow
def test_v1_is_fedavg_on_labels():
    """What travels differs, the numbers do not."""
    _, split, metrics = one_round(local=BY_IMAGES)
    _, fedavg, others = one_round(name='fedavg', local=dataclasses.replace(BY_IMAGES, objective='supervised'))
    for a, b in zip(jax.tree.leaves(split.student), jax.tree.leaves(fedavg.student), strict=True):
        np.testing.assert_array_equal(a, b)
    assert metrics == others


@pytest.mark.parametrize(
    ('index', 'order', 'changes'),
    slow_but([(0, [4, 1, 3], {}), (2, [3, 1, 4], {'local': BY_IMAGES} | ADAM)], (0, [4, 1, 3], {})),
)
def test_v2_hands_one_top_from_client_to_client(index, order, changes):
    """With its optimizer: the moments of Adam and their correction go on, where those of the bottoms start anew.

    Each round has an order of its own. By images, the bottom of client n counts n times."""
    _, hparams, model, state = start('v2', **changes)
    assert order == sorted(IDS, key=lambda i: int(jax.random.bits(stream_of(i, 'turn', index=index))))
    bottoms, losses, top, of_top = [], [], state.student.top, Optimizer(hparams, hparams.lr)
    for i in order:
        optimizers = [Optimizer(hparams, hparams.lr), of_top]
        bottom, top, client_losses = train_alone(i, state.student.bottom, top, hparams, model, optimizers, index)
        bottoms.append(bottom)
        losses.append(np.mean(client_losses))
    _, after, metrics = one_round(index=index, version='v2', **changes)
    counted = [bottom for i, bottom in zip(order, bottoms, strict=True) for _ in range(i if changes else 1)]
    assert_pieces_close(after.student, mean(counted), top)
    np.testing.assert_allclose(metrics['loss_local'], np.mean(losses), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_order_of_the_cohort_padding_and_clients_without_labels_change_nothing(version):
    _, plain, metrics = one_round(version=version)
    for ids, weight in (([4, 1, 3], None), ([2, 4, 0, 1, 3], [0, 1, 1, 1, 1])):  # client 0 has no labels
        _, other, others = one_round(ids, weight, version=version)
        assert_pieces_close(other.student, *plain.student[:2])
        np.testing.assert_allclose(others['loss_local'], metrics['loss_local'], rtol=1e-5)
    before, lost, metrics = one_round([0, 1], [1, 0], version=version)
    assert_pieces_close(lost.student, *before.student[:2], rtol=0)
    assert metrics['loss_local'] == 0


@pytest.mark.slow
def test_v1_in_chunks_is_v1_at_once():
    _, plain, _ = one_round()
    _, other, _ = one_round(axis=core.client_axis(2))
    assert_pieces_close(other.student, *plain.student[:2])


@pytest.mark.slow
@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_what_moves_and_what_is_read(version):
    """Both sides move, and nothing that is not labeled at a client of the cohort has a part in it."""
    before, after, _ = one_round(version=version)
    for old, new in zip(jax.tree.leaves(before.student), jax.tree.leaves(after.student), strict=True):
        assert not np.array_equal(old, new)
    assert after.student.proj == {'params': {}}
    assert (after.teacher, after.queue, after.clients, int(after.round), int(after.step)) == ((), (), (), 1, 0)
    federation = toy.federation(labels_at_clients=True)
    read = np.concatenate([federation.labeled_index[i][: federation.labeled_size[i]] for i in IDS])
    hidden = np.setdiff1d(np.arange(len(federation.client_images)), read)
    blind = federation.replace(
        client_images=federation.client_images.at[hidden].set(0),
        client_labels=federation.client_labels.at[hidden].set(-1),
        server_images=jnp.zeros_like(federation.server_images),
        server_labels=jnp.full_like(federation.server_labels, -1),
    )
    _, other, _ = one_round(version=version, federation=blind)
    for a, b in zip(jax.tree.leaves(after.student), jax.tree.leaves(other.student), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_versions_and_optimizers_differ():
    models = [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one_round(**options)[1].student)])
        for options in ({}, {'version': 'v2'}, ADAM, {**ADAM, 'momentum': 0.5})
    ]
    for i, one in enumerate(models):
        for other in models[:i]:
            assert np.max(np.abs(one - other)) > 1e-6


COMMAND = {'algorithm': 'splitfed', 'data__client_labels': -1, 'k_s': 0, **runs.VIEWS}


@pytest.mark.slow
@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_the_command_learns_and_reads_the_same_from_the_host(tmp_path, version):
    changes = {**COMMAND, 'splitfed__version': version, 'k_u': 15, 'lr': 0.1}
    assert runs.run(tmp_path / 'device', **changes) == 0
    assert runs.run(tmp_path / 'host', **changes, data__residency='host') == 0
    assert runs.lines(tmp_path / 'device') == runs.lines(tmp_path / 'host')
    first, *_, last = runs.records(tmp_path / 'device')
    assert last['loss_local'] < first['loss_local']
    assert (last['loss_consistency'], last['loss_supervised'], last['k_s']) == (None, None, 0)
    assert 'teacher_accuracy' not in last
    seen = {round(record['images_per_second'] * record['wall_seconds']) for record in (first, last)}
    assert all(abs(images - 3 * 15 * 4) <= 1 for images in seen)  # no batch of the server is among them


def test_the_official_setting(tmp_path):
    """5 clients of 279 or 280 images and all their labels, one epoch in batches of 256, Adam with 1e-4."""
    words = ('algorithm=splitfed', 'setting=official', 'rounds=2', 'federation.partition=uniform')
    assert launch.main(['launch.py', runs.DIGITS, f'--workdir={tmp_path}', *(f'--config.{w}' for w in words)]) == 0
    for record in runs.records(tmp_path):
        assert (record['k_s'], record['lr']) == (0, pytest.approx(1e-4))
        assert record['images_per_second'] * record['wall_seconds'] == pytest.approx(5 * 2 * 256, rel=0.02)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'data.client_labels': 0}, 'data.client_labels=0: splitfed trains only on labels at the clients'),
        ({'k_s': 20}, 'config.k_s=20: splitfed trains only at the clients, and the server has no images'),
        ({'data.client_labels': 4001}, 'leaves the server none of data.num_labeled=4000'),
        ({'federation.mu': 0, 'data.client_labels': 4000}, 'mu=0 ignores the labels that splitfed trains on'),
        ({'splitfed.version': 'v3'}, "config.splitfed.version='v3' is unknown; use one of v1, v2"),
        ({'splitfed.version': 'v2', 'parallel.devices': 2}, 'trains one client after another'),
        ({'splitfed.version': 'v2', 'parallel.coordinator': 'host:1'}, 'trains one client after another'),
        ({'splitfed.version': 'v2', 'federation.client_chunk': 3}, 'trains one client after another; leave it at 0'),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, message):
    config = default.get_config()
    config.algorithm, config.data.client_labels, config.k_s, config.batch_size = 'splitfed', -1, 0, 60  # 60 % 8 != 0
    config_lib.check(config)
    config.update_from_flattened_dict(changes)
    with pytest.raises(UserError) as error:
        config_lib.check(config)
    assert message in str(error.value)
    assert '\n' not in str(error.value)


def test_v2_takes_one_device_of_those_there_are():
    config = default.get_config()
    config.algorithm, config.data.client_labels, config.k_s, config.parallel.devices = 'splitfed', -1, 0, 0
    config.splitfed.version = 'v2'
    assert count_devices(config_lib.resolve(config)) == 1
