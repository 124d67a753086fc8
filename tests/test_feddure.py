"""FedDure: rounds against NumPy, its ablations, what stands still, bytes and operations, errors."""

import dataclasses
import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import cifar10
from semisfl_jax import algorithms, costs, data
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms.feddure import FedDure
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import Local
from semisfl_jax.costs.prices import Work
from tests import feddure_twin, linear, runs, toy
from tests.marks import slow_but
from tests.rows import STUDENT, Row

LABELS = (('data.client_labels', 20), ('federation.mu', 1), ('batch_size', 4))  # without them F-regs stand still
ROW = Row(f'{STUDENT} clients', f'{STUDENT} clients', by_images=True, keys=LABELS)

FEDERATION = toy.federation(labels_at_clients=True)  # client 0 has no label
# Classes by other numbers, with which some pseudo-labels of the first model are right and some are wrong. Pixels that
# are neither black nor white in any view: one that is the same in all of a batch has a gradient of 0 up to rounding,
# and Adam makes a step of it
FEDERATION = FEDERATION.replace(
    client_labels=(FEDERATION.client_labels + 1) % toy.CLASSES, client_images=FEDERATION.client_images // 2 + 60
)
CLIENTS = dataclasses.replace(toy.HPARAMS, k_u=2, num_clients=5, server_trains=False, threshold=0.7, labeled_rows=2)
ROUNDS = (([0, 2, 4], [0, 0, 0]), ([1, 2, 4], [0, 1, 1]))  # cohort and its visits


def start(name='feddure', model=None, **changes):
    hparams = dataclasses.replace(CLIENTS, **({'options': FedDure()} if name == 'feddure' else {}) | changes)
    algorithm = algorithms.build(name, model or linear.model(), toy.VIEWS, hparams)
    return jax.jit(algorithm.round), algorithm.init(rng.root(0)), hparams


def one_round(run, state, ids, visits=None, federation=FEDERATION):
    return run(rng.root(0), state, federation, toy.cohort(ids, visits), jnp.int32(0))


# --- against NumPy

LARGE = {'hidden': 4, 'coarse_rate': 5.0, 'fine_rate': 40.0}  # rates at which the regulators come far in two rounds
EPOCHS = Local(epochs=1, weighting='samples')
CASES = {
    'sgd': {'options': FedDure(**LARGE), 'weight_decay': 0.1, 'consistency_weight': 0.7},
    'adam, for an epoch, by images': {
        'options': FedDure(hidden=4, coarse_rate=0.5, fine_rate=2.0),
        'optimizer': 'adam',
        'local': EPOCHS,
    },
    'no coarse': {'options': FedDure(coarse=False, hidden=4, fine_rate=40.0)},
    'no fine': {'options': FedDure(fine=False, coarse_rate=5.0)},
}


@pytest.mark.parametrize('case', slow_but(CASES, 'sgd', 'adam, for an epoch, by images'))
def test_rounds_equal_the_ones_in_numpy(case):
    run, state, hparams = start(**CASES[case])
    # Adam's first steps are signs, which rounding turns with AVX2: ten times as much in what follows from them
    turned = 'adam' in case and not runs.processor_has('avx512f')
    small = 1e-4 if turned else 1e-5
    first, server = state, feddure_twin.Server(rng.root(0), hparams, state.student, state.clients)
    for ids, visits in ROUNDS:
        state, metrics = one_round(run, state, ids, visits)
        for name, value in server.run_round(FEDERATION, ids, visits, 0).items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=small, err_msg=name)
        linear.assert_close(state, server, ('student',))
        if hparams.options.fine:
            for found, expected in zip(feddure_twin.kept(state.clients), server.fine, strict=True):
                for name, value in expected.items():
                    np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=20 * small, err_msg=name)
    if hparams.options.fine:  # far more than the tolerance
        assert moves(first.clients, state.clients).max() > (0.1 if turned else 1e-2)


def moves(one, other):
    """The largest change of each client's F-reg [N]."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return np.max([np.abs(np.asarray(a - b)).reshape(len(a), -1).max(axis=1) for a, b in pairs], axis=0)


def test_the_order_of_the_cohort_and_its_padding_change_nothing():
    """Every F-reg stays with its client."""
    run, state, _ = start(**CASES['sgd'])
    state, _ = one_round(run, state, *ROUNDS[0])
    cohorts = [toy.cohort(ids, [1] * len(ids)) for ids in ([1, 2, 4], [4, 1, 2], [1, 2, 4, 4, 3])]
    cohorts[-1] = cohorts[-1]._replace(weight=jnp.array([1.0, 1.0, 1.0, 0.0, 0.0]))
    plain, *others = (run(rng.root(0), state, FEDERATION, cohort, jnp.int32(0)) for cohort in cohorts)
    assert moves(state.clients, plain[0].clients)[[1, 2, 4]].min() > 1e-3
    for other in others:
        chex.assert_trees_all_close(plain, other, rtol=1e-4, atol=1e-5)


# --- its limits

MODELS = {'matrices': linear.model, 'layers': toy.model}


def two_rounds(run, state):
    results = []
    for ids, visits in ROUNDS:
        state, metrics = one_round(run, state, ids, visits)
        results.append((state.replace(clients=()), metrics))
    return results


@pytest.mark.parametrize('model', slow_but(MODELS, 'matrices'))
def test_without_regulators_it_is_fedavg_with_fixmatch(model):
    """To the bit, and with optimizers, passes and labels of any kind."""
    changes = {'local': EPOCHS, 'optimizer': 'adam', 'nesterov': False, 'consistency_weight': 0.7}
    own = start(model=MODELS[model](), options=FedDure(coarse=False, fine=False), **changes)
    other = start('fedavg', model=MODELS[model](), **changes)
    assert own[1].clients == ()
    for (state, metrics), (expected, others) in zip(two_rounds(*own[:2]), two_rounds(*other[:2]), strict=True):
        chex.assert_trees_all_equal(state, expected)
        for name, value in others.items():
            np.testing.assert_array_equal(metrics[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize('model', MODELS)
def test_an_f_reg_that_says_one_makes_every_pseudo_label_count(model):
    """As FixMatch does with a threshold of 0: sigmoid(100) is 1."""
    options = FedDure(coarse=False, fine_rate=0.0)
    run, state, _ = start(model=MODELS[model](), options=options)
    state.clients['out']['bias'] = jnp.full_like(state.clients['out']['bias'], 100.0)
    other = start('fedavg', model=MODELS[model](), threshold=0.0)
    for (after, metrics), (expected, others) in zip(two_rounds(run, state), two_rounds(*other[:2]), strict=True):
        chex.assert_trees_all_close(after.student, expected.student, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(metrics['loss_local'], others['loss_local'], rtol=1e-5)
        np.testing.assert_array_equal(metrics['weight_wrong'], 1.0)
    assert others['mask_rate'] == 1 > metrics['mask_rate']


def without_dropout(model):
    """A model whose result does not depend on a key."""
    return model._replace(bottom=lambda v, x, key, train, rows=None: model.bottom(v, x, None, train))._replace(
        top=lambda v, x, key, train, rows=None: model.top(v, x, None, train)
    )


@pytest.mark.parametrize('fine', [False, True])
def test_a_small_step_on_true_labels_lowers_their_loss(fine):
    """The labeled images are the unlabeled ones, in views that change nothing, and the pseudo-labels are true: d is
    rate ||gradient||^2 to first order, with F-reg at sigmoid(bias) for all images that much of it."""
    model = without_dropout(linear.model())
    views = toy.VIEWS._replace(**dict.fromkeys(('weak', 'strong', 'supervised'), lambda key, images: images))
    options = FedDure(fine=fine, coarse_rate=0.05, fine_rate=0.0)
    hparams = dataclasses.replace(CLIENTS, k_u=1, threshold=0.0, momentum=0.0, nesterov=False, options=options)
    algorithm = algorithms.build('feddure', model, views, hparams)
    state, rows = algorithm.init(rng.root(0)), FEDERATION.index[2][:2]
    whole, x = linear.numbers(state.student), views.normalize(FEDERATION.client_images[rows])
    y = np.argmax(algorithm.predict(state, FEDERATION.client_images[rows])['student'], axis=1)
    federation = FEDERATION.replace(
        client_labels=FEDERATION.client_labels.at[rows].set(y),
        index=FEDERATION.index.at[2, :2].set(rows),
        labeled_index=FEDERATION.labeled_index.at[2, :2].set(rows),
        size=FEDERATION.size.at[2].set(2),
        labeled_size=FEDERATION.labeled_size.at[2].set(2),
    )
    share = 1.0
    if fine:  # kernels of 0 leave the bias
        clients = jax.tree.map(jnp.zeros_like, state.clients)
        clients['out']['bias'] += 0.5
        state, share = state.replace(clients=clients), 1 / (1 + np.exp(-0.5))
    after, metrics = one_round(jax.jit(algorithm.round), state, [2], federation=federation)
    if fine:
        chex.assert_trees_all_equal(after.clients, state.clients)

    pixels = np.asarray(x, np.float64).reshape(2, -1)

    def loss(bottom, top):
        features = pixels @ bottom
        return linear.cross_entropies((features - features.mean(axis=0)) @ top, y).mean()

    squared = sum(np.sum(g**2) for g in linear.gradients_of(loss, [whole['bottom'], whole['top']]))
    assert float(metrics['coarse_effect']) > 0
    np.testing.assert_allclose(metrics['coarse_effect'], 0.05 * hparams.lr * share * squared, rtol=0.05)


# --- what stands still


@functools.cache
def plain():
    """SGD with momentum and weight decay."""
    return start(options=FedDure(fine_rate=5.0), weight_decay=0.5)


def test_regulators_learn_at_clients_with_labels_alone():
    """Of clients 0, 2 and 4, the first has no label; 1 and 3 are not there."""
    run, state, _ = plain()
    after, metrics = one_round(run, state, [0, 2, 4])
    np.testing.assert_array_equal(moves(state.clients, after.clients) > 0, [False, False, True, False, True])
    assert metrics['coarse_effect'] != 0
    alone, metrics = one_round(run, state, [0])
    chex.assert_trees_all_equal(alone.clients, state.clients)
    assert metrics['coarse_effect'] == 0
    assert not np.array_equal(alone.student.top['params']['w'], state.student.top['params']['w'])  # its model learns


def test_a_client_that_failed_keeps_its_f_reg():
    run, state, _ = plain()
    cohort = toy.cohort([0, 2, 4])._replace(weight=jnp.array([1.0, 1.0, 0.0]))
    after, _ = run(rng.root(0), state, FEDERATION, cohort, jnp.int32(0))
    np.testing.assert_array_equal(moves(state.clients, after.clients) > 0, [False, False, True, False, False])


@pytest.mark.slow
def test_a_c_reg_that_stands_still_has_no_effect():
    run, state, _ = start(options=FedDure(coarse_rate=0.0, fine_rate=5.0))
    after, metrics = one_round(run, state, [2, 4])
    assert metrics['coarse_effect'] == 0
    chex.assert_trees_all_equal(after.clients, state.clients)  # the virtual step leads nowhere


@pytest.mark.slow
def test_without_labels_at_any_client_it_weights_by_the_first_f_regs():
    run, state, _ = start(labeled_rows=0)
    after, metrics = one_round(run, state, [1, 4])
    chex.assert_trees_all_equal(after.clients, state.clients)
    assert metrics['coarse_effect'] == 0
    assert 0.3 < metrics['weight_wrong'] < 0.7


def test_every_client_has_a_first_f_reg_of_its_own():
    _, state, _ = start()
    kernel = np.asarray(state.clients['hidden']['kernel'])
    assert kernel.shape == (5, toy.CLASSES, 128)
    assert len(np.unique(kernel)) == kernel.size
    more = start(num_clients=7)[1].clients['hidden']['kernel']
    np.testing.assert_array_equal(more[:5], kernel)


# --- bytes and operations


def test_bytes_of_the_papers_model():
    """6,575,370 parameters, mean and variance of 2,240 channels, in each direction: 25.1 MiB."""
    config = cifar10.get_config()
    config.update_from_flattened_dict({'algorithm': 'feddure', 'model.name': 'resnet9', 'data.client_labels': 1000})
    config_lib.check(config)
    config = config_lib.resolve(config)
    shape, classes = data.shape(config.data)
    model = costs.build(config, algorithms.get('feddure'), classes, shape, config_lib.hparams(config))
    cost = model.client_cost(costs.CostContext(model.pieces, model.whole_bytes, model.hparams, 10))
    assert cost.download == cost.upload == 4 * (6_575_370 + 2 * 2_240)
    assert cost.upload / 2**20 == pytest.approx(25.1, abs=0.05)


@pytest.mark.parametrize(
    ('coarse', 'fine', 'unlabeled', 'labeled'),
    [(True, True, 11, 9), (False, True, 9, 7), (True, False, 7, 6), (False, False, 4, 4)],
)
def test_operations_of_an_image(coarse, fine, unlabeled, labeled):
    """In forward passes, of which training takes three. Unlabeled: labels 1, theta 3; a look 3, its transpose 2, a
    second gradient 2. Labeled: labels 1 (thrown away), theta 3; the step's end 3, d 2."""
    pieces = types.SimpleNamespace(whole_work=Work(forward=1.0, train=3.0))
    h = types.SimpleNamespace(batch_size=16, labeled_rows=4, local=Local(), options=FedDure(coarse=coarse, fine=fine))
    context = costs.CostContext(pieces, 100, h, 2, labels=np.array([True, False]))
    cost = algorithms.get('feddure').price(context)
    np.testing.assert_array_equal(cost.step_work, [12 * unlabeled + 4 * labeled, 16 * 4])
    assert (cost.download, cost.upload) == (100, 100)


# --- errors


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'hidden': 0}, 'hidden=0 must be at least 1'),
        ({'fine_rate': -1.0}, 'fine_rate=-1.0 must be 0 or more'),
    ],
)
def test_what_makes_no_sense_ends_in_one_line(changes, message):
    config = cifar10.get_config()
    config.algorithm = 'feddure'
    config.feddure.update(changes)
    with pytest.raises(UserError) as error:
        config_lib.check(config)
    assert str(error.value) == f'config.feddure.{message}'
