"""SplitFed against trainings written out by hand: one whole model, several averaged, one after another."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from semisfl_jax import algorithms, experiment, parallel, rng, sampling
from semisfl_jax import config as config_lib
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import SplitFed
from semisfl_jax.types import HERE
from tests import runs, toy, twin
from tests.test_semisfl import assert_trees_close

IDS = [1, 3, 4]  # client n of the toy federation has n labelled images, so client 0 has none
PIECES = ('bottom', 'top')


def start(version='v1', split_index=None, layout=HERE, top_norm=False, **changes):
    hparams = dataclasses.replace(toy.HPARAMS, splitfed=SplitFed(version), **changes)
    model = toy.model(split_index, top_norm=top_norm)
    algorithm = algorithms.build('splitfed', model, toy.VIEWS, hparams, layout)
    return algorithm, hparams, model, algorithm.init(rng.root(0))


def one_round(ids=IDS, weight=None, federation=None, **options):
    """State before, state after and metrics of a round."""
    algorithm, _, _, state = start(**options)
    cohort = toy.cohort(ids)
    if weight is not None:
        cohort = cohort._replace(weight=jnp.asarray(weight, jnp.float32))
    federation = toy.federation(labels_at_clients=True) if federation is None else federation
    after, metrics = jax.jit(algorithm.round)(rng.root(0), state, federation, cohort, jnp.int32(9))
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


def train_alone(client, bottom, top, hparams, model, optimizers):
    """K_u steps of a client's whole model: bottom, top and losses. `optimizers`: of bottom and top."""
    federation, key = toy.federation(labels_at_clients=True), rng.root(0)
    rows, labeled = sampling.client_rows(
        key, federation, toy.cohort([client]), hparams.k_u, hparams.batch_size, hparams.batch_size
    )
    assert labeled.all()
    held = np.asarray(federation.labeled_index[client][: federation.labeled_size[client]])
    losses = []
    for t in range(hparams.k_u):
        batch = np.asarray(rows[0, t])
        assert set(batch) <= set(held)
        stream = rng.fold(key, 'splitfed', 0, 'client', client, t)
        x = toy.VIEWS.normalise(toy.VIEWS.supervised(rng.fold(stream, 'views'), federation.client_images[batch]))
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


def assert_pieces_close(found, bottom, top, **tolerance):
    assert_trees_close(found.bottom, bottom, **(tolerance or {'rtol': 1e-4, 'atol': 1e-6}))
    assert_trees_close(found.top, top, **(tolerance or {'rtol': 1e-4, 'atol': 1e-6}))


ADAM = {'optimizer': 'adam', 'lr': 1e-3, 'lr_min': 1e-3, 'nesterov': False}


@pytest.mark.parametrize('changes', [{'split_index': 1, 'top_norm': True}, {}, {'split_index': 3}, ADAM])
@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_one_client_is_plain_training_at_every_cut(version, changes):
    """One optimizer for the whole model, as if it had not been cut."""
    _, hparams, model, state = start(version, **changes)
    optimizers = [Optimizer(hparams, hparams.lr) for _ in PIECES]
    bottom, top, losses = train_alone(4, *state.student[:2], hparams, model, optimizers)
    _, after, metrics = one_round([4], version=version, **changes)
    assert_pieces_close(after.student, bottom, top)
    np.testing.assert_allclose(metrics['loss_supervised'], np.mean(losses), rtol=1e-5)


def test_v1_averages_trainings_that_know_nothing_of_each_other():
    _, hparams, model, state = start('v1')
    alone = [
        train_alone(i, *state.student[:2], hparams, model, [Optimizer(hparams, hparams.lr) for _ in PIECES])
        for i in IDS
    ]
    _, after, metrics = one_round(version='v1')
    assert_pieces_close(after.student, *(mean([part[side] for part in alone]) for side in (0, 1)))
    np.testing.assert_allclose(metrics['loss_supervised'], np.mean([part[2] for part in alone]), rtol=1e-5)
    assert np.isnan(metrics['loss_unlabeled'])


def test_v2_hands_one_top_from_client_to_client():
    _, hparams, model, state = start('v2')
    draw = {i: int(jax.random.bits(rng.fold(rng.root(0), 'splitfed', 0, 'order', i))) for i in IDS}
    order = sorted(IDS, key=draw.get)
    bottoms, losses, top, of_top = [], [], state.student.top, Optimizer(hparams, hparams.lr)
    for i in order:
        optimizers = [Optimizer(hparams, hparams.lr), of_top]
        bottom, top, own = train_alone(i, state.student.bottom, top, hparams, model, optimizers)
        bottoms.append(bottom)
        losses += own
    _, after, metrics = one_round(version='v2')
    assert_pieces_close(after.student, mean(bottoms), top)
    np.testing.assert_allclose(metrics['loss_supervised'], np.mean(losses), rtol=1e-5)


def test_v2_draws_another_order_in_another_round():
    orders = {
        tuple(np.argsort([int(jax.random.bits(rng.fold(rng.root(0), 'splitfed', r, 'order', i))) for i in IDS]))
        for r in range(12)
    }
    assert len(orders) > 2


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_order_of_the_cohort_padding_and_clients_without_labels_change_nothing(version):
    _, plain, metrics = one_round(version=version)
    for ids, weight in (([4, 1, 3], None), ([2, 4, 0, 1, 3], [0, 1, 1, 1, 1])):  # client 0 has no labels
        _, other, others = one_round(ids, weight, version=version)
        assert_pieces_close(other.student, *plain.student[:2])
        np.testing.assert_allclose(others['loss_supervised'], metrics['loss_supervised'], rtol=1e-5)
    before, lost, metrics = one_round([0, 1], [1, 0], version=version)
    assert_pieces_close(lost.student, *before.student[:2], rtol=0)
    assert metrics['loss_supervised'] == 0


def test_v1_in_chunks_is_v1_at_once():
    _, plain, _ = one_round()
    for layout in (parallel.layout(2), parallel.layout(0, 'loop')):
        _, other, _ = one_round(layout=layout)
        assert_pieces_close(other.student, *plain.student[:2])


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_what_moves_and_what_is_read(version):
    """Both sides move, and nothing that is not labelled at a client of the cohort has a part in it."""
    before, after, _ = one_round(version=version)
    for old, new in zip(jax.tree.leaves(before.student), jax.tree.leaves(after.student), strict=True):
        assert not np.array_equal(old, new)
    assert after.student.proj == {'params': {}}
    assert (after.teacher, after.memory, int(after.round), int(after.step)) == ((), (), 1, 0)
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


def test_versions_and_optimizers_differ():
    found = [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one_round(**options)[1].student)])
        for options in ({}, {'version': 'v2'}, ADAM, {**ADAM, 'momentum': 0.5})
    ]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert np.max(np.abs(one - other)) > 1e-6


LABELS = {'algorithm': 'splitfed', 'data__num_labeled': 300, 'data__client_labels': 290}


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_the_command_learns_and_reads_the_same_from_the_host(tmp_path, version):
    changes = {**LABELS, 'splitfed__version': version, 'k_u': 5, 'pre_rounds': 2}
    assert runs.run(tmp_path / 'device', **changes) == 0
    assert runs.run(tmp_path / 'host', **changes, data__residency='host') == 0
    assert runs.lines(tmp_path / 'device') == runs.lines(tmp_path / 'host')
    first, *_, last = runs.records(tmp_path / 'device')
    assert last['loss_supervised'] < first['loss_supervised']
    assert last['loss_consistency'] is None
    assert 'teacher_accuracy' not in last
    seen = {round(record['images_per_second'] * record['wall_seconds']) for record in (first, last)}
    assert all(abs(images - 3 * 5 * 4) <= 1 for images in seen)  # no batch of the server is among them


@pytest.mark.parametrize('partition', ['uniform', 'dirichlet'])
def test_all_training_images_but_a_handful_can_be_labelled_at_the_clients(partition):
    """The fully labelled upper bound: 1,437 digits, one left to each of 10 clients, one to the server."""
    config = runs.config(
        algorithm='splitfed',
        data__num_labeled=1427,
        data__client_labels=1426,
        federation__partition=partition,
    )
    config_lib.check(config)
    built = experiment.build(config_lib.resolve(config))
    assert len(built.dataset.train_images) == 1437
    assert int(built.federation.labeled_size.sum()) == 1426
    assert len(built.federation.server_index) == 1
    assert '1,426 labelled ones in all' in '\n'.join(experiment.describe([built]))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'data.client_labels': 0}, 'splitfed trains on labels at the clients, and they have none; use up to 3999'),
        ({'federation.mu': 0}, 'config.federation.mu=0 ignores labels at the clients'),
        ({'splitfed.version': 'v3'}, "config.splitfed.version='v3' is unknown; use one of v1, v2"),
        ({'optimizer': 'lion'}, "config.optimizer='lion' is unknown; use one of sgd, adam"),
        ({'optimizer': 'adam'}, "config.nesterov=True belongs to optimizer='sgd'"),
        ({'splitfed.version': 'v2', 'parallel.devices': 2}, 'trains one client after another'),
        ({'splitfed.version': 'v2', 'parallel.coordinator': 'host:1'}, 'trains one client after another'),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, message):
    config = default.get_config()
    config.algorithm, config.data.client_labels, config.batch_size = 'splitfed', 3000, 60  # 60 is no multiple of 8
    config_lib.check(config)
    config.update_from_flattened_dict(changes)
    with pytest.raises(UserError) as error:
        config_lib.check(config)
    assert message in str(error.value)
    assert '\n' not in str(error.value)


def test_v2_takes_one_device_of_those_there_are():
    config = default.get_config()
    config.algorithm, config.data.client_labels, config.parallel.devices = 'splitfed', 3000, 0
    config.splitfed.version = 'v2'
    assert config_lib.resolve(config).parallel.devices == 1
