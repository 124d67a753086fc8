"""FedMatch: who moves what, and rounds against the plain twin. What it is made of: tests/test_fedmatch_by_hand.py."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jax_core

from semisfl_jax import algorithms, core
from semisfl_jax.algorithms.fedmatch import FedMatch
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.hparams import Local, learning_rate
from semisfl_jax.core.state import trainable
from semisfl_jax.core.types import LOCAL_CLIENTS
from tests import fedmatch_twin, linear, runs, toy
from tests.fedavg_rounds import CLIENTS, FEDERATION
from tests.fedmatch_twin import Twin
from tests.marks import slow_but
from tests.rows import STUDENT, Row
from tests.trees import assert_trees_close

ROW = Row(f'{STUDENT} server clients', 'student.statistics server clients')

KEY = rng.root(0)
PLAIN_SGD = {'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0, 'k_u': 1}
NO_L_U = FedMatch(lambda_a=0.0, lambda_i=0.0, lambda_l2=0.0, lambda_l1=0.0)
AT_SERVER = FedMatch(helper_every=2, lambda_a=0.7, lambda_i=0.5, lambda_l2=1.0)
AT_CLIENTS = FedMatch(helper_every=2, helpers_persist=True, lambda_s=1.5, lambda_a=0.7, lambda_i=0.5, lambda_l2=0.3)
LOSSY = dataclasses.replace(AT_CLIENTS, delta_threshold=4e-3, l1_threshold=6e-3)
# A compiled round takes seconds, so the tests below share a few. The cohort has three places, of which some may be
# padding.
CASES = {
    'labels at the server': {'labeled_rows': 0, 'threshold': 0.8, 'options': AT_SERVER},
    'labels at the clients, helpers persist': {
        'labeled_rows': 1,
        'threshold': 0.8,
        'local': Local(optimizer_state='kept'),
        'options': LOSSY,
    },
    'no helpers': {
        'labeled_rows': 0,
        'threshold': 0.8,
        'options': dataclasses.replace(AT_SERVER, helpers=0),
    },
    'the server alone first': PLAIN_SGD
    | {'labeled_rows': 0, 'pre_rounds': 1, 'server_trains': True, 'options': FedMatch(lambda_s=2.5)},
    'sigma alone': {'labeled_rows': 1, 'weight_decay': 0.0, 'options': NO_L_U},
    'regularizers alone': PLAIN_SGD
    | {'labeled_rows': 1, 'threshold': 1.0, 'options': FedMatch(lambda_s=0.0, lambda_l2=0.7, lambda_l1=0.3)},
}


def start(case, axis=LOCAL_CLIENTS, model=None, **changes):
    """Method and first state, its logits louder than they come."""
    hparams = dataclasses.replace(CLIENTS, **(CASES[case] | changes))
    algorithm = algorithms.build('fedmatch', model or linear.model(), toy.VIEWS, hparams, axis)
    state = algorithm.init(KEY)
    state = state.replace(student=state.student._replace(top=jax.tree.map(lambda w: 3.0 * w, state.student.top)))
    return algorithm, state, hparams


@functools.cache
def program(case, axis=LOCAL_CLIENTS, model=None):
    return jax.jit(start(case, axis, model)[0].round)


def three(ids, visits):
    """A cohort of up to three, filled up with clients that take no part."""
    padding = 3 - len(ids)
    cohort = toy.cohort([*ids, *range(padding)], [visits] * 3)
    return cohort._replace(weight=jnp.array([1.0] * len(ids) + [0.0] * padding))


def run_rounds(case, cohorts, k_s=0, axis=LOCAL_CLIENTS, model=None):
    """States after each round, the first of them before any, and the metrics of each."""
    state, run = start(case, axis, model)[1], program(case, axis, model)
    states, metrics = [state], []
    for visits, ids in enumerate(cohorts):
        state, round_metrics = run(KEY, state, FEDERATION, three(ids, visits), jnp.int32(k_s))
        states.append(state)
        metrics.append(round_metrics)
    assert run._cache_size() == 1
    return states, metrics


def moved(old, new):
    return [not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True)]


@pytest.mark.slow
def test_regularizers_act_without_a_confident_sample():
    """psi - lr (2 lambda_l2 (psi - sigma) + lambda_l1 sign psi); sigma, of weight 0, stays."""
    (before, after), (metrics,) = run_rounds('regularizers alone', [[2]])
    assert float(metrics['mask_rate']) == float(metrics['loss_agreement']) == 0.0
    assert not any(moved(trainable(before.student), trainable(after.student)))
    size = 0.0
    for sigma, psi, new in zip(
        *map(jax.tree.leaves, (trainable(before.student), before.server, after.server)), strict=True
    ):
        sigma, psi = np.float64(sigma), np.float64(psi)
        expected = psi - toy.HPARAMS.lr * (2 * 0.7 * (psi - sigma) + 0.3 * np.sign(psi))
        np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-7)
        size += 0.7 * np.sum((sigma - psi) ** 2) + 0.3 * np.sum(np.abs(psi))
    np.testing.assert_allclose(metrics['loss_local'], size, rtol=1e-5)


def test_psi_starts_as_a_share_of_sigma():
    hparams = dataclasses.replace(CLIENTS, options=FedMatch(psi_start=0.3))
    state = algorithms.build('fedmatch', linear.model(), toy.VIEWS, hparams).init(KEY)
    chex.assert_trees_all_equal(state.server, jax.tree.map(lambda w: 0.3 * w, trainable(state.student)))


@pytest.mark.slow
def test_labels_at_the_server_clients_train_psi_alone():
    (before, after), _ = run_rounds('labels at the server', [[1, 4]])
    assert not any(moved(trainable(before.student), trainable(after.student)))
    assert all(moved(before.server, after.server))
    assert all(moved(before.student.bottom['batch_stats'], after.student.bottom['batch_stats']))


@pytest.mark.slow
def test_labels_at_the_server_the_server_trains_sigma_alone():
    """One step of plain SGD at sigma + psi, weight lambda_s, in a round without clients; they join in the next."""
    (before, after, last), (metrics, more) = run_rounds(
        'the server alone first', [[1, 4], [1, 4]], k_s=1, model=toy.model()
    )
    assert not any(moved((before.server, before.clients), (after.server, after.clients)))
    assert np.isnan(metrics['loss_local'])

    step_key = rng.fold(KEY, 'supervised', 0)
    rows = FEDERATION.server_index[sampling.server_rows(KEY, before.step, CLIENTS.server_batch_size, 12)]
    x = toy.VIEWS.normalize(toy.VIEWS.supervised(rng.fold(step_key, 'views'), FEDERATION.server_images[rows]))
    y = FEDERATION.server_labels[rows]

    def loss(sigma):
        variables = fedmatch_twin.filled(before.student, sigma, tuple(before.server))
        logits, moved_on = core.forward(toy.model(), variables, x, rng.fold(step_key, 'dropout'), True)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - logits[jnp.arange(len(y)), y]), moved_on

    sigma = fedmatch_twin.parameters(before.student)
    (value, moved_on), gradient = jax.value_and_grad(loss, has_aux=True)(sigma)
    expected = jax.tree.map(lambda w, g: w - CLIENTS.lr * 2.5 * g, sigma, gradient)
    assert_trees_close(tuple(trainable(after.student)), expected, rtol=1e-4, atol=1e-6)
    assert_trees_close(after.student.bottom['batch_stats'], moved_on.bottom['batch_stats'], rtol=1e-5)
    np.testing.assert_allclose(metrics['loss_supervised_ce'], value, rtol=1e-5)

    assert np.isfinite(more['loss_local'])
    assert all(moved(after.server, last.server))
    np.testing.assert_array_equal(last.clients.known, [False, True, False, False, True])


@pytest.mark.slow
def test_without_a_loss_of_its_own_psi_stays():
    """Labels at the clients: sigma moves by its loss alone."""
    (before, after), (metrics,) = run_rounds('sigma alone', [[2, 4]], model=toy.model())
    weights = [[piece['params'] for piece in state.student] for state in (before, after)]
    assert sum(moved(*weights)) >= 6  # all but a bias that BatchNorm takes out again
    for psi, new in zip(*map(jax.tree.leaves, (before.server, after.clients.psi)), strict=True):
        np.testing.assert_array_equal(np.asarray(new)[[2, 4]], [psi, psi])
    assert float(metrics['loss_client_labels']) > 0


@pytest.mark.slow
def test_a_client_without_labels_leaves_sigma():
    """Client 0 has none; weight decay and statistics of labeled images have no part in it either."""
    (before, after), (metrics,) = run_rounds('labels at the clients, helpers persist', [[0]])
    assert not any(moved(trainable(before.student), trainable(after.student)))
    assert all(moved(before.server, after.server))
    assert float(metrics['loss_client_labels']) == 0.0


@pytest.mark.slow
def test_helpers_come_in_every_second_round_and_to_known_clients():
    """Round 2: of 1, 2 and 3 only 1 and 2 are known, each has the other. Round 4: 4 is new. Round 6: two for all."""
    cohorts = [[1, 2], [1, 2, 3], [1, 2], [1, 2, 4], [0, 1], [0, 4]]
    _, metrics = run_rounds('labels at the server', cohorts)
    used = [float(round_metrics['helpers_used']) for round_metrics in metrics]
    np.testing.assert_allclose(used, [0, (1 + 1 + 0) / 3, 0, (2 + 2 + 0) / 3, 0, 2], rtol=1e-6)
    inter = [float(round_metrics['loss_inter_client']) for round_metrics in metrics]
    assert [value > 0 for value in inter] == [False, True, False, True, False, True]
    _, alone = run_rounds('labels at the server', [[1], [1]])
    assert [float(round_metrics['helpers_used']) for round_metrics in alone] == [0.0, 0.0]


@pytest.mark.slow
def test_helpers_that_persist():
    """What was sent in round 2 helps in rounds 3 and 5, too, and is exchanged in round 4 for the cohort alone."""
    cohorts = [[1, 2, 4], [1, 2], [1, 2], [1, 4], [2, 4]]
    states, metrics = run_rounds('labels at the clients, helpers persist', cohorts)
    assert [float(round_metrics['helpers_used']) for round_metrics in metrics] == [0.0, 2.0, 2.0, 2.0, 2.0]
    sent = [state.clients.sent for state in states]
    assert sent[0].valid.shape == (5, 2)
    np.testing.assert_array_equal(sent[2].valid.all(axis=1), [False, True, True, False, False])
    chex.assert_trees_all_equal(sent[2], sent[3])
    pairs = zip(*map(jax.tree.leaves, sent[3:5]), strict=True)
    changed = [np.any(np.asarray(a != b).reshape(5, -1), axis=1) for a, b in pairs]
    np.testing.assert_array_equal(np.any(changed, axis=0), [False, True, False, False, True])
    chex.assert_trees_all_equal(sent[4], sent[5])


@pytest.mark.slow
def test_the_server_keeps_what_clients_uploaded():
    (_, one, two), _ = run_rounds('labels at the server', [[2], [3, 4]])
    np.testing.assert_array_equal(two.clients.known, [False, False, True, True, True])
    for stored, average in zip(jax.tree.leaves(one.clients.psi), jax.tree.leaves(one.server), strict=True):
        np.testing.assert_array_equal(stored[2], average)
        assert not np.any(np.asarray(stored)[[0, 1, 3, 4]])
    for old, stored, average in zip(*map(jax.tree.leaves, (one.clients.psi, two.clients.psi, two.server)), strict=True):
        np.testing.assert_array_equal(stored[2], old[2])
        np.testing.assert_allclose((stored[3] + stored[4]) / 2, average, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(np.sum(two.clients.embedding, axis=1), [0, 0, 1, 1, 1], rtol=1e-6)


def test_small_entries_of_psi_are_zero_in_evaluation():
    algorithm, state, _ = start('labels at the server', options=FedMatch(l1_threshold=0.01))
    images = FEDERATION.client_images[:4]
    psi = jax.tree.map(lambda w: np.where(np.abs(w) > 0.01, w, 0), tuple(state.server))
    assert 0.1 < np.mean(np.concatenate([np.ravel(w) for w in jax.tree.leaves(psi)]) == 0) < 0.9
    variables = fedmatch_twin.filled(state.student, fedmatch_twin.parameters(state.student), psi)
    expected, _ = core.forward(linear.model(), variables, toy.VIEWS.normalize(images), None, False)
    predictions = algorithm.predict(state, images)
    assert algorithm.headline == 'student'
    assert set(predictions) == {'student'}
    np.testing.assert_allclose(predictions['student'], expected, rtol=1e-5, atol=1e-6)
    other = start('labels at the server', options=FedMatch(l1_threshold=0.0))[0].predict(state, images)['student']
    assert np.max(np.abs(predictions['student'] - other)) > 1e-3


COHORTS = ([0, 2, 4], [1, 2, 4], [1, 2, 4])
TWINS = ('labels at the server', 'labels at the clients, helpers persist')


@functools.cache
def rounds_of(case, model):
    return run_rounds(case, COHORTS, model=model)


@pytest.mark.parametrize(
    ('case', 'model'),
    slow_but([*((case, toy.model) for case in TWINS), (TWINS[0], linear.model)], (TWINS[0], linear.model)),
)
def test_rounds_equal_the_plain_twin(case, model):
    _, state, hparams = start(case, model=model())
    twin = Twin(KEY, model(), toy.VIEWS, hparams, state.student, tuple(state.server))
    states, metrics = rounds_of(case, model())
    for index, ids in enumerate(COHORTS):
        expected = twin.run_round(FEDERATION, ids, [index] * 3, float(learning_rate(hparams, index)))
        after = states[index + 1]
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[index][name], value, rtol=2e-4, atol=1e-6, err_msg=name)
        assert_trees_close(after.student, twin.student, rtol=2e-3, atol=2e-5)
        assert_trees_close(tuple(after.server), twin.psi, rtol=2e-3, atol=2e-5)
        for n, embedding in twin.embeddings.items():
            np.testing.assert_allclose(after.clients.embedding[n], embedding, rtol=2e-3, atol=2e-5)
            psi = jax.tree.map(lambda w, n=n: w[n], after.clients.psi)
            assert_trees_close(tuple(psi), twin.last[n], rtol=2e-3, atol=2e-5)
    rates = [float(round_metrics['mask_rate']) for round_metrics in metrics]
    assert any(0.05 < rate < 0.95 for rate in rates)  # both sides of the threshold were compared
    used = [float(round_metrics['helpers_used']) for round_metrics in metrics]
    np.testing.assert_allclose(used, [0, 4 / 3, 4 / 3 if 'persist' in case else 0], rtol=1e-6)
    for name in ('psi_sent', 'sigma_sent'):
        assert (name in metrics[0]) == bool(hparams.options.delta_threshold)
        shares = [float(round_metrics.get(name, 0.5)) for round_metrics in metrics]
        assert all(0.1 < share < 0.95 for share in shares), shares


@pytest.mark.slow
def test_the_order_of_the_cohort_and_its_padding_change_nothing():
    states, _ = rounds_of('labels at the server', linear.model())
    state, run = states[-1], program('labels at the server')
    plain, metrics = run(KEY, state, FEDERATION, three([1, 4], 3), jnp.int32(0))
    assert float(metrics['helpers_used']) == 2
    backwards = jax.tree.map(lambda x: x[::-1], three([1, 4], 3))
    others, measured = run(KEY, state, FEDERATION, backwards, jnp.int32(0))
    chex.assert_trees_all_close(plain, others, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(metrics, measured, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_one_client_at_a_time_gives_the_same_numbers():
    case = 'labels at the clients, helpers persist'
    actual, expected = run_rounds(case, COHORTS, axis=core.client_axis(chunk=1)), rounds_of(case, linear.model())
    chex.assert_trees_all_close(actual[1], expected[1], rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(actual[0][-1], expected[0][-1], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_without_helpers_nothing_is_kept_and_nobody_helps():
    """The numbers of a round in which no helper is due; then the other method has helpers, and this one has not."""
    states, metrics = run_rounds('no helpers', COHORTS)
    assert not jax.tree.leaves(states[-1].clients)
    with_helpers, others = rounds_of('labels at the server', linear.model())
    one, other = ((after[1].student, after[1].server) for after in (states, with_helpers))
    chex.assert_trees_all_close(one, other, rtol=1e-5, atol=1e-7)
    chex.assert_trees_all_close(metrics[0], others[0], rtol=1e-5)
    assert [float(round_metrics['helpers_used']) for round_metrics in metrics] == [0.0, 0.0, 0.0]
    assert float(metrics[1]['loss_inter_client']) == 0.0 < float(others[1]['loss_inter_client'])
    size = sum(w.size for w in jax.tree.leaves(with_helpers[0].server))
    assert sum(w.size for w in jax.tree.leaves(with_helpers[0].clients)) == 5 * (size + toy.CLASSES + 1)


@pytest.mark.slow
def test_helpers_are_decided_on_by_the_round_alone():
    """A condition of one truth value: under `vmap` a client's own condition would become both branches."""
    algorithm, state, _ = start('labels at the server')
    arguments = KEY, state, FEDERATION, three([1, 2], 0), jnp.int32(0)

    def conditions(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == 'cond':
                yield equation
            for inner in jax_core.jaxprs_in_params(equation.params):
                yield from conditions(inner)

    predicates = list(conditions(jax.make_jaxpr(algorithm.round)(*arguments).jaxpr))
    assert len(predicates) == 1
    assert predicates[0].invars[0].aval.shape == ()


RUN = {'algorithm': 'fedmatch', 'fedmatch__helper_every': 1, 'rounds': 4, 'federation__num_active': 4}
RUN |= {'data__client_labels': 20, 'federation__mu': 1, 'local__epochs': 1, 'threshold': 0.3}
RUN |= {'fedmatch__delta_threshold': 5e-3}


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bytes(tmp_path):
    assert runs.run(tmp_path / 'whole', **RUN) == 0
    assert runs.run(tmp_path / 'parts', **(RUN | {'rounds': 2})) == 0
    assert runs.run(tmp_path / 'parts', **RUN) == 0
    assert runs.lines(tmp_path / 'parts') == runs.lines(tmp_path / 'whole')
    last = runs.records(tmp_path / 'whole')[-1]
    assert last['helpers_used'] > 0
    assert last['loss_inter_client'] > 0
    assert 0 <= last['student_accuracy'] <= 1

    # The model has 13,706 entries and no BatchNorm; four clients send of psi and of sigma, 4 bytes an entry.
    entries = (9 + 1) * 16 + (9 * 16 + 1) * 32 + (2 * 2 * 32 + 1) * 64 + (64 + 1) * 10
    assert entries == 13_706
    before = 0
    for record in runs.records(tmp_path / 'whole'):
        shares = record['psi_sent'], record['sigma_sent']
        assert all(0.05 < share < 0.95 for share in shares), shares
        assert record['bytes_up'] - before == pytest.approx(4 * entries * 4 * sum(shares), abs=1)
        before = record['bytes_up']
