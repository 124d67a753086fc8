"""FedDure: its regulators, rounds against NumPy, its ablations, what stands still, operations."""

import dataclasses
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, costs
from semisfl_jax.algorithms import feddure
from semisfl_jax.algorithms.feddure import FedDure
from semisfl_jax.core import losses, rng
from semisfl_jax.core.hparams import Local
from semisfl_jax.costs.prices import Work
from tests.helpers import feddure_twin, linear, toy
from tests.helpers.marks import slow_but
from tests.helpers.rows import STUDENT, Row

LABELS = (('data.client_labels', 20), ('federation.mu', 1), ('batch_size', 4))  # without them F-regs stand still
ROWS = {'feddure': Row(f'{STUDENT} clients', f'{STUDENT} clients', by_images=True, keys=LABELS)}

FEDERATION = toy.federation(labels_at_clients=True)  # client 0 has no label
# Classes by other numbers, with which some pseudo-labels of the first model are right and some are wrong. Pixels that
# are neither black nor white in any view: one that is the same in all of a batch has a gradient of 0 up to rounding,
# and Adam makes a step of it
FEDERATION = FEDERATION.replace(
    client_labels=(FEDERATION.client_labels + 1) % toy.CLASSES, client_images=FEDERATION.client_images // 2 + 60
)
CLIENTS = dataclasses.replace(toy.HPARAMS, k_u=2, num_clients=5, server_trains=False, threshold=0.7, labeled_rows=2)
ROUNDS = (([0, 2, 4], [0, 0, 0]), ([4, 1, 2], [1, 0, 1]))  # cohort, in any order, and its visits


def start(name='feddure', **changes):
    hparams = dataclasses.replace(CLIENTS, **({'options': FedDure()} if name == 'feddure' else {}) | changes)
    algorithm = algorithms.build(name, linear.model(), toy.VIEWS, hparams)
    return jax.jit(algorithm.round), algorithm.init(rng.root(0)), hparams


def one_round(run, state, ids, visits=None):
    return run(rng.root(0), state, FEDERATION, toy.cohort(ids, visits), jnp.int32(0))


# --- the regulators


def test_f_reg_has_the_papers_1537_parameters_as_pytorch_draws_them():
    w = feddure.init_fine(rng.root(0), 10, 128)
    assert sum(x.size for x in jax.tree.leaves(w)) == 10 * 128 + 128 + 128 + 1 == 1_537
    for name, inputs in (('hidden', 10), ('out', 128)):
        values = np.abs(np.concatenate([np.ravel(x) for x in w[name].values()]))
        assert 0.9 / np.sqrt(inputs) < values.max() <= 1 / np.sqrt(inputs)


def test_the_gradient_of_f_reg_is_that_of_the_whole_step():
    """Against JAX, which takes second derivatives, through BatchNorm, in float64."""
    with jax.enable_x64():
        draw, labels = np.random.default_rng(1), jnp.array([2, 0, 1, 0, 1, 2, 1])
        x, *phi = (jnp.asarray(draw.normal(size=shape)) for shape in ((7, 5), (5, 4), (4, 3)))
        w = jax.tree.map(lambda x: jnp.asarray(3.0 * x, jnp.float64), feddure.init_fine(rng.root(2), 3, 16))

        def rows(phi, those=slice(3, 7)):
            y = x[those] @ phi[0]
            logits = jax.nn.relu((y - y.mean(axis=0)) / y.std(axis=0)) @ phi[1]
            return losses.cross_entropy_rows(logits, labels[those]), jax.lax.stop_gradient(jax.nn.softmax(logits))

        def after_a_step(w):
            gradient = jax.grad(lambda phi: jnp.mean(rows(phi)[0] * feddure.weigh(w, rows(phi)[1])))(phi)
            return jnp.mean(rows(jax.tree.map(lambda phi, g: phi - 0.3 * g, phi, gradient), slice(3))[0])

        def own(w):
            unlabeled = feddure.differentiate(rows, phi)
            return feddure.fine_gradient(w, unlabeled, lambda phi: jnp.mean(rows(phi, slice(3))[0]), phi, 0.3)

        got, expected = jax.jit(lambda w: (own(w), jax.grad(after_a_step)(w)))(w)
        assert np.abs(expected['out']['bias']).max() > 1e-4
        chex.assert_trees_all_close(got, expected, rtol=1e-9, atol=1e-14)


def test_rows_are_counted_by_what_is_known_of_their_label():
    """Row 0 is labeled; 1 is right, 2 wrong, of 3 nobody knows, 4 is right and not confident."""
    labels, truth = jnp.array([0, 1, 1, 2, 2]), jnp.array([0, 1, 0, -1, 2])
    confident, guessed = jnp.array([True, True, True, True, False]), jnp.array([False, True, True, True, True])
    counts = feddure.count(labels, confident, truth, guessed, jnp.array([9.0, 0.5, 0.25, 9.0, 0.0]))
    rates = feddure.rates(feddure.by_visit(counts, jnp.int32(3)))
    found = {name: float(value) for name, value in rates.items() if not np.isnan(value)}
    weights = {'weight_right': 0.25, 'weight_wrong': 0.25, 'weight_right_visit_2': 0.25, 'weight_wrong_visit_2': 0.25}
    assert found == {'mask_rate': 0.75, 'pseudo_label_accuracy': 0.5} | weights


@pytest.mark.slow
def test_weights_by_visit_are_those_of_a_round_of_the_clients_alone():
    """Clients 2 and 4 for the fourth and the seventh time, which are of one group; 1 for the first time."""
    run, state, _ = start()
    (_, together), (_, alone) = one_round(run, state, [1, 2, 4], [0, 3, 6]), one_round(run, state, [2, 4], [3, 6])
    for kind in ('weight_right', 'weight_wrong'):
        np.testing.assert_allclose(together[f'{kind}_visit_4'], alone[kind], rtol=1e-5)
    assert np.isfinite(together['weight_wrong_visit_1'])
    assert np.isnan(together['weight_wrong_visit_2'])


# --- against NumPy

LARGE = {'hidden': 4, 'coarse_rate': 5.0, 'fine_rate': 40.0}  # rates at which the regulators come far in two rounds
CASES = {
    'by images': {
        'options': FedDure(**LARGE),
        'weight_decay': 0.1,
        'consistency_weight': 0.7,
        'local': Local(weighting='samples'),
    },
    'no coarse': {'options': FedDure(coarse=False, hidden=4, fine_rate=40.0)},
    'no fine': {'options': FedDure(fine=False, coarse_rate=5.0)},
}


@pytest.mark.parametrize('case', slow_but(CASES, 'by images'))
def test_rounds_equal_the_ones_in_numpy(case):
    run, state, hparams = start(**CASES[case])
    first, server = state, feddure_twin.Server(rng.root(0), hparams, state.student, state.clients)
    for ids, visits in ROUNDS:
        state, metrics = one_round(run, state, ids, visits)
        for name, value in server.run_round(FEDERATION, ids, visits, 0).items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
        linear.assert_close(state, server, ('student',))
        if hparams.options.fine:
            for client, expected in enumerate(server.fine):
                found = feddure_twin.numbers(state.clients, client)
                for name, value in expected.items():
                    np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-4, err_msg=name)
    if hparams.options.fine:  # far more than the tolerance
        assert moves(first.clients, state.clients).max() > 1e-2


def moves(one, other):
    """The largest change of each client's F-reg [N]."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return np.max([np.abs(np.asarray(a - b)).reshape(len(a), -1).max(axis=1) for a, b in pairs], axis=0)


# --- its limit


@pytest.mark.slow
def test_without_regulators_it_is_fedavg_with_fixmatch():
    """To the bit, and with optimizers, passes and labels of any kind."""
    changes = {
        'local': Local(epochs=1, weighting='samples'),
        'optimizer': 'adam',
        'nesterov': False,
        'consistency_weight': 0.7,
    }
    (run, state, _), (other, expected, _) = (
        start(options=FedDure(coarse=False, fine=False), **changes),
        start('fedavg', **changes),
    )
    assert state.clients == ()
    for ids, visits in ROUNDS:
        state, metrics = one_round(run, state, ids, visits)
        expected, others = one_round(other, expected, ids, visits)
        chex.assert_trees_all_equal(state, expected)
        for name, value in others.items():
            np.testing.assert_array_equal(metrics[name], value, err_msg=name)


# --- what stands still


@pytest.mark.slow
def test_regulators_learn_at_clients_with_labels_alone():
    """Of clients 0, 2 and 4, the first has no label; 1 and 3 are not there. Who fails keeps its F-reg."""
    run, state, _ = start(options=FedDure(fine_rate=5.0), weight_decay=0.5)
    for failed in (None, 4):
        cohort = toy.cohort([0, 2, 4])
        cohort = cohort._replace(weight=jnp.where(cohort.ids == (failed or -1), 0.0, 1.0))
        after, metrics = run(rng.root(0), state, FEDERATION, cohort, jnp.int32(0))
        learned = moves(state.clients, after.clients) > 0
        np.testing.assert_array_equal(learned, [False, False, True, False, failed is None])
        assert metrics['coarse_effect'] != 0
    alone, metrics = one_round(run, state, [0])
    chex.assert_trees_all_equal(alone.clients, state.clients)
    assert metrics['coarse_effect'] == 0
    assert not np.array_equal(alone.student.top['params']['w'], state.student.top['params']['w'])  # its model learns


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


@pytest.mark.parametrize(
    ('coarse', 'fine', 'unlabeled', 'labeled'),
    [(True, True, 11, 9), (False, True, 9, 7), (True, False, 7, 6), (False, False, 4, 4)],
)
def test_an_image_costs_as_many_passes_as_the_method_makes(coarse, fine, unlabeled, labeled):
    """In forward passes, of which training takes three. Unlabeled: labels 1, theta 3; a look 3, its transpose 2, a
    second gradient 2. Labeled: labels 1 (thrown away), theta 3; the step's end 3, d 2."""
    pieces = types.SimpleNamespace(whole_work=Work(forward=1.0, train=3.0))
    h = types.SimpleNamespace(batch_size=16, labeled_rows=4, local=Local(), options=FedDure(coarse=coarse, fine=fine))
    context = costs.CostContext(pieces, 100, h, 2, labels=np.array([True, False]))
    cost = algorithms.get('feddure').price(context)
    np.testing.assert_array_equal(cost.step_work, [12 * unlabeled + 4 * labeled, 16 * 4])
    assert (cost.download, cost.upload) == (100, 100)
