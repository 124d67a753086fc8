"""FedAvg and FedProx against a plain twin, and what must hold of local training whatever the numbers are."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from semisfl_jax import algorithms, core
from semisfl_jax import config as config_lib
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core import rng, sampling, trees
from semisfl_jax.core.hparams import Local, Uda, learning_rate, optimizer
from semisfl_jax.core.sampling import BatchPlan
from semisfl_jax.core.types import LOCAL_CLIENTS, SplitParams
from tests import draws, toy
from tests.fedavg_rounds import CLIENTS, FEDERATION, ROUNDS, start, two_rounds
from tests.local_twin import Twin
from tests.marks import slow_but
from tests.rows import STUDENT, Row
from tests.trees import assert_trees_close

ROW = Row(STUDENT, STUDENT, by_images=True)

SUPERVISED = {'local': Local(objective='supervised'), 'labeled_rows': 4}


CASES = {
    'supervised': ('fedavg', SUPERVISED),
    'supervised for epochs, by samples': (
        'fedavg',
        SUPERVISED | {'local': Local(objective='supervised', epochs=3, weighting='samples')},
    ),
    'fixmatch': ('fedavg', {}),
    'fixmatch without labels': ('fedavg', {'labeled_rows': 0, 'consistency_weight': 0.3}),
    'fixmatch for epochs, by samples, keeps momentum': (
        'fedavg',
        {'local': Local(epochs=1, weighting='samples', optimizer_state='kept')},
    ),
    'uda': ('fedavg', {'local': Local(objective='uda'), 'uda': Uda(temperature=0.4)}),
    'fedprox': ('fedprox', {'local': Local(prox=5.0)}),
}


@functools.cache
def rounds_of(case):
    return two_rounds(*CASES[case])


@pytest.mark.parametrize('case', slow_but(CASES))
def test_rounds_equal_the_plain_twin(case):
    name, changes = CASES[case]
    _, key, state, hparams = start(name, **changes)
    twin = Twin(key, toy.model(), toy.VIEWS, hparams, state.student, name)
    for index, ((after, metrics), (ids, visits)) in enumerate(zip(rounds_of(case), ROUNDS, strict=True)):
        expected = twin.run_round(FEDERATION, ids, visits, float(learning_rate(hparams, index)))
        for measured, value in expected.items():
            np.testing.assert_allclose(metrics[measured], value, rtol=2e-4, atol=1e-6, err_msg=measured)
        assert_trees_close(after.student, twin.student, rtol=2e-3, atol=2e-5)
        assert (int(after.step), after.teacher, after.queue) == (0, (), ())
    if 'mask_rate' in metrics:  # rows on both sides of the threshold were compared
        assert any(0 < round_metrics['mask_rate'] < 1 for _, round_metrics in rounds_of(case))


@pytest.mark.slow
def test_by_default_clients_count_by_their_images():
    """The clients train on 3 + 5 n images (unlabeled and labeled): 3, 13 and 23, as the twin is told to count them."""
    config = default.get_config()
    config.algorithm = 'fedavg'
    local = hparams_lib.from_config(config_lib.resolve(config)).local
    algorithm, key, state, hparams = start(local=local)
    told = dataclasses.replace(hparams, local=Local(weighting='samples'))
    twin = Twin(key, toy.model(), toy.VIEWS, told, state.student)
    after, _ = jax.jit(algorithm.round)(key, state, FEDERATION, toy.cohort([0, 2, 4]), jnp.int32(0))
    twin.run_round(FEDERATION, [0, 2, 4], [0, 0, 0], hparams.lr)
    assert_trees_close(after.student, twin.student, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(('schedule', 'progress'), [('linear', 0.25), ('exp', 1.0), ('off', 0.0)])
def test_annealed_labels_count_while_their_class_is_improbable(schedule, progress):
    """Of four labeled rows those whose class is less probable than the threshold; the mean is over these alone."""
    hparams = dataclasses.replace(CLIENTS, local=Local(objective='uda'), uda=Uda(tsa=schedule), labeled_rows=4)
    objective, key = core.build_objective(toy.model(), toy.VIEWS, hparams), rng.root(3)
    student, rows = start()[2].student, FEDERATION.labeled_index[4]
    batch = core.Batch(FEDERATION.client_images[rows], FEDERATION.client_labels[rows], jnp.ones(4, bool))
    parameters = tuple(piece['params'] for piece in student)
    _, (_, means, _) = objective(
        SplitParams(*parameters), student, student, batch, key, jnp.float32(progress * hparams.lr_rounds)
    )

    x = toy.VIEWS.normalize(toy.VIEWS.supervised(rng.fold(key, 'supervised'), batch.images))
    logits, _ = core.forward(toy.model(), student, x, rng.fold(key, 'dropout'), True)
    p = np.asarray(jax.nn.softmax(logits))[np.arange(4), np.asarray(batch.labels)]
    ceiling = {'linear': 0.25 * 2 / 3 + 1 / 3, 'exp': 1.0, 'off': 2.0}[schedule]
    counted = p[p <= ceiling]
    assert (len(counted) < 4) == (schedule == 'linear')
    assert len(counted) > 0
    np.testing.assert_allclose(means['loss_client_labels'], -np.mean(np.log(counted)), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('case', sorted(CASES.keys() - {'fixmatch'}))
def test_every_case_is_another_method(case):
    """No switch is read and ignored."""
    a, b = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(rounds_of(c)[-1][0].student)]) for c in ('fixmatch', case)
    )
    assert np.max(np.abs(a - b)) > 1e-5


def test_one_client_that_holds_all_labels_is_plain_sgd():
    """Full-batch gradient descent without momentum, with views that change nothing: a loop of w - lr * gradient."""
    federation = toy.federation(clients=2)
    rows = federation.index[1][: int(federation.size[1])]
    federation = federation.replace(labeled_index=federation.index, labeled_size=federation.size)
    views = toy.VIEWS._replace(supervised=lambda key, images: images)
    hparams = dataclasses.replace(
        CLIENTS, local=Local(objective='supervised'), batch_size=7, labeled_rows=7, momentum=0.0, nesterov=False, k_u=4
    )
    model = toy.model()
    model = model._replace(
        top=lambda variables, x, key, train, rows=None: toy.model().top(variables, x, None, False)
    )  # no dropout
    algorithm = algorithms.build('fedavg', model, views, hparams)
    state = algorithm.init(rng.root(0))
    student = state.student
    state, _ = jax.jit(algorithm.round)(rng.root(0), state, federation, toy.cohort([1]), jnp.int32(0))

    x, y = views.normalize(federation.client_images[rows]), federation.client_labels[rows]
    for _ in range(4):

        def loss(bottom, top, student=student):
            features, moved = model.bottom({**student.bottom, 'params': bottom}, x, None, True)
            logits, _ = model.top({**student.top, 'params': top}, features, None, False)
            return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - logits[jnp.arange(7), y]), moved

        (gradient_bottom, gradient_top), moved = jax.grad(loss, argnums=(0, 1), has_aux=True)(
            student.bottom['params'], student.top['params']
        )

        def step(w, g):
            return w - 0.02 * (g + hparams.weight_decay * w)

        student = student._replace(
            bottom={**moved, 'params': jax.tree.map(step, student.bottom['params'], gradient_bottom)},
            top={**student.top, 'params': jax.tree.map(step, student.top['params'], gradient_top)},
        )
    assert_trees_close(state.student, student, rtol=1e-4, atol=1e-6)


def test_weighted_average_by_hand():
    """Two uploads, by 1 and 3 images: a quarter and three quarters; uniform: halves; nobody: what was there."""
    uploads, fallback = {'w': jnp.array([[2.0, 4.0], [6.0, 0.0]])}, {'w': jnp.array([9.0, 9.0])}
    for weight, expected in (([1.0, 3.0], [5.0, 1.0]), ([1.0, 1.0], [4.0, 2.0]), ([0.0, 0.0], [9.0, 9.0])):
        average = trees.weighted_mean(uploads, jnp.array(weight), fallback)
        np.testing.assert_allclose(average['w'], expected)


def test_rows_of_a_cohort_go_back_where_they_came_from():
    tree = {'w': jnp.arange(10.0).reshape(5, 2)}
    ids, weight = jnp.array([3, 1, 1]), jnp.array([1.0, 1.0, 0.0])  # the last is padding, a copy of client 1
    taken = trees.gather(tree, ids)
    np.testing.assert_array_equal(taken['w'], [[6, 7], [2, 3], [2, 3]])
    new = {'w': jnp.array([[60.0, 70.0], [20.0, 30.0], [-1.0, -1.0]])}
    expected = [[0, 1], [20, 30], [4, 5], [60, 70], [8, 9]]
    np.testing.assert_array_equal(trees.scatter(tree, ids, new, weight)['w'], expected)
    assert trees.scatter((), ids, (), weight) == ()


@pytest.mark.parametrize(('name', 'kind', 'copies'), slow_but([('fedavg', 'sgd', 1), ('fedswitch', 'adam', 2)]))
def test_what_clients_keep(name, kind, copies):
    """The cohort's momentum moves, that of others stays at zero, and a client that is padding keeps its own."""
    changes = {'local': Local(optimizer_state='kept'), 'optimizer': kind, 'nesterov': False}
    algorithm, key, state, _ = start(name, **changes)
    size = sum(x.size for piece in state.student for x in jax.tree.leaves(piece['params']))
    assert sum(x.size for x in jax.tree.leaves(state.clients) if x.ndim > 1) == 5 * copies * size
    cohort = toy.cohort([2, 4, 4])._replace(weight=jnp.array([1.0, 0.0, 0.0]))
    after, _ = jax.jit(algorithm.round)(key, state, FEDERATION, cohort, jnp.int32(0))
    for old, new in zip(jax.tree.leaves(state.clients), jax.tree.leaves(after.clients), strict=True):
        assert not np.array_equal(old[2], new[2])
        others = jnp.array([0, 1, 3, 4])
        np.testing.assert_array_equal(old[others], new[others])


def test_adam_is_adam():
    """One step from zero moments moves each parameter by lr * sign of its gradient (L2 term included)."""
    hparams = dataclasses.replace(CLIENTS, optimizer='adam', nesterov=False, weight_decay=0.1)
    sgd, w, g = optimizer(hparams, 0.01), jnp.array([1.0, -1.0, 2.0]), jnp.array([0.5, 0.2, -0.1])
    updates, _ = sgd.update(g, sgd.init(w), w)
    np.testing.assert_allclose(updates, -0.01 * np.sign([0.6, 0.1, 0.1]), rtol=1e-4)


def test_epochs_read_every_image_as_often():
    """Client n holds 3 + 4 n images: two epochs in batches of 4 are ceil((6 + 8 n) / 4) steps, each image in them."""
    cohort = toy.cohort([0, 2, 4], [0, 1, 2])
    federation = toy.federation()
    sizes = BatchPlan(3, 4, labeled_rows=0, epochs=2)
    steps = sampling.client_steps(federation, cohort, sizes)
    np.testing.assert_array_equal(steps, [2, 6, 10])
    rows, labeled = draws.client_rows(rng.root(0), federation, cohort, sizes)
    assert rows.shape == (3, 10, 4)
    assert not labeled.any()
    first = toy.cohort([0, 2, 4], [0, 0, 0])
    rows, _ = draws.client_rows(rng.root(0), federation, first, sizes)
    for client_rows, count, client in zip(np.asarray(rows), steps, (0, 2, 4), strict=True):
        size = int(federation.size[client])
        for epoch in range(2):
            read = client_rows[:count].ravel()[epoch * size : (epoch + 1) * size]
            np.testing.assert_array_equal(np.sort(read), np.sort(federation.index[client][:size]))
    np.testing.assert_array_equal(
        sampling.client_steps(FEDERATION, cohort, BatchPlan(3, 4, 4, 2)), [0, 1, 2]
    )  # labels alone
    np.testing.assert_array_equal(
        sampling.client_steps(FEDERATION, cohort, BatchPlan(3, 4, 1, 2)), [2, 8, 13]
    )  # beside labels


@pytest.mark.slow
@pytest.mark.parametrize('case', ['supervised', 'fixmatch for epochs, by samples, keeps momentum'])
def test_the_order_of_the_cohort_and_its_padding_change_nothing(case):
    name, changes = CASES[case]
    algorithm, key, state, _ = start(name, **changes)
    run = jax.jit(algorithm.round)
    plain, metrics = run(key, state, FEDERATION, toy.cohort([1, 2, 4]), jnp.int32(0))
    shuffled, others = run(key, state, FEDERATION, toy.cohort([4, 1, 2]), jnp.int32(0))
    padded = toy.cohort([1, 2, 4, 4, 3])._replace(weight=jnp.array([1.0, 1.0, 1.0, 0.0, 0.0]))
    filled, more = run(key, state, FEDERATION, padded, jnp.int32(0))
    for other, measured in ((shuffled, others), (filled, more)):
        assert_trees_close(plain.student, other.student, rtol=1e-4, atol=1e-6)
        chex.assert_trees_all_close(plain.clients, other.clients, rtol=1e-4, atol=1e-6)
        chex.assert_trees_all_close(metrics, measured, rtol=1e-4)


@pytest.mark.slow
def test_clients_without_images_take_no_part():
    """In supervised training that is a client without labels; when nobody is left, the model stays."""
    algorithm, key, state, _ = start(**SUPERVISED)
    run = jax.jit(algorithm.round)
    alone, _ = run(key, state, FEDERATION, toy.cohort([3]), jnp.int32(0))
    beside, _ = run(key, state, FEDERATION, toy.cohort([0, 3]), jnp.int32(0))
    assert_trees_close(alone.student, beside.student, rtol=1e-5, atol=1e-7)
    nobody, metrics = run(key, state, FEDERATION, toy.cohort([0]), jnp.int32(0))
    chex.assert_trees_all_equal(nobody.student, state.student)
    assert float(metrics['loss_local']) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize('how', [{'chunk': 2}, {'how': 'loop'}])
def test_layouts_give_the_same_numbers(how):
    changes = {'local': Local(epochs=1, optimizer_state='kept')}
    results = []
    for axis in (LOCAL_CLIENTS, core.client_axis(**how)):
        algorithm, key, state, _ = start('fedavg', axis, **changes)
        results.append(jax.jit(algorithm.round)(key, state, FEDERATION, toy.cohort([0, 2, 4]), jnp.int32(0)))
    assert_trees_close(results[0][0].student, results[1][0].student, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(results[0][0].clients, results[1][0].clients, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(results[0][1], results[1][1], rtol=1e-4)


@pytest.mark.slow
def test_the_server_trains_first():
    """K_s steps at the server, then clients start from there: the same as a round of either in turn."""
    hparams = {'server_trains': True}
    algorithm, key, state, _ = start(**hparams)
    after, metrics = jax.jit(algorithm.round)(key, state, FEDERATION, toy.cohort([2, 4]), jnp.int32(3))
    server, first = jax.jit(algorithm.round)(
        key, state, FEDERATION, toy.cohort([2])._replace(weight=jnp.zeros(1)), jnp.int32(3)
    )
    assert int(server.step) == 3
    clients, second = jax.jit(start()[0].round)(
        key, state.replace(student=server.student), FEDERATION, toy.cohort([2, 4]), 0
    )
    assert_trees_close(after.student, clients.student, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(metrics['loss_supervised'], first['loss_supervised'])
    np.testing.assert_allclose(metrics['loss_local'], second['loss_local'], rtol=1e-5)
    assert 'loss_supervised' not in second


@pytest.mark.slow
def test_warm_up_rounds_leave_clients_out():
    changes = {'server_trains': True, 'pre_rounds': 1, 'local': Local(optimizer_state='kept')}
    algorithm, key, state, _ = start(**changes)
    run = jax.jit(algorithm.round)
    first, metrics = run(key, state, FEDERATION, toy.cohort([1, 4]), jnp.int32(2))
    assert np.isnan(metrics['loss_local'])
    chex.assert_trees_all_equal(first.clients, state.clients)
    second, metrics = run(key, first, FEDERATION, toy.cohort([1, 4]), jnp.int32(2))
    assert np.isfinite(metrics['loss_local'])
    assert int(second.round) == 2
