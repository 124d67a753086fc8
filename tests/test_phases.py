"""The phases of all methods, with many of their options, against NumPy on a model of three matrices."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, core
from semisfl_jax.algorithms.fedswitch import FedSwitch
from semisfl_jax.algorithms.splitfed import SplitFed
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.hparams import Local, Uda, optimizer
from semisfl_jax.core.state import trainable
from semisfl_jax.core.supervised import BLOCK
from tests import linear, linear_local, toy
from tests.marks import slow_but

# Cohort, its visits, K_s. Client 0 has no labeled image. Beside the cohort stand a client of weight 0 and, in `ROUNDS`
# alone, one without images.
ROUNDS = (([4, 0, 2], [0, 0, 0], 3), ([1, 2, 4], [0, 1, 1], 2))
EMPTY = 3  # the client without images
CASES = {
    'the paper': ('semisfl', {'labeled_rows': 1, 'weight_decay': 0.1}),
    'the code': (
        'semisfl',
        {
            'queue': 'single_ring',
            'client_teacher_bn': 'train',
            'server_teacher_bn': 'train_first_round',
            'sampling': 'replicated',
            'pre_rounds': 1,
        },
    ),
    'other options': (
        'semisfl',
        {
            'queue_empty_slots': 'count',
            'queue_stride': 3,
            'supervised_references': 'student_supcon',
            'client_teacher_ema': True,
            'ema_decay': 0.7,
            'ema_warmup': False,
            'momentum': 0.5,
            'nesterov': False,
            'temperature': 0.5,
            'consistency_weight': 0.5,
            'clustering_weight': 2.0,
            'contrastive_weight': 0.3,
        },
    ),
    'the ring without empty slots': ('semisfl', {'queue': 'single_ring', 'queue_empty_slots': 'ignore'}),
    'no queue': ('semisfl', {'queue': 'off', 'pre_rounds': 1, 'client_teacher_ema': True}),
    'the switch': ('fedswitch_sl', {'options': FedSwitch('switch', 0.6), 'queue': 'off', 'threshold': 0.5}),
    'the student labels': ('fedswitch_sl', {'options': FedSwitch('student'), 'queue': 'off', 'threshold': 0.9}),
    'the teacher labels': ('fedswitch_sl', {'options': FedSwitch('teacher'), 'queue': 'off', 'labeled_rows': 1}),
}
DEFAULT = 'the paper', 'the code', 'other options', 'the switch'


@functools.cache
def federation():
    """Client `EMPTY` has no image."""
    found = toy.federation(labels_at_clients=True)
    sizes = found.size.at[EMPTY].set(0), found.labeled_size.at[EMPTY].set(0)
    return found.replace(size=sizes[0], labeled_size=sizes[1])


def start(name, changes):
    hparams = dataclasses.replace(toy.HPARAMS, **{'threshold': 0.8} | changes)
    algorithm = algorithms.build(name, linear.model(), toy.VIEWS, hparams)
    return algorithm, hparams, algorithm.init(rng.root(0))


def cohort(ids, visits):
    """With the client without images, and padding: a copy of a client, of weight 0."""
    found = toy.cohort([*ids, EMPTY, 2], [*visits, 0, 0])
    return found._replace(weight=found.weight.at[-1].set(0.0))


@pytest.mark.parametrize('case', slow_but(CASES, *DEFAULT))
def test_rounds_equal_the_ones_in_numpy(case):
    """Two rounds, and one in which nobody takes part."""
    name, changes = CASES[case]
    algorithm, hparams, state = start(name, changes)
    server = linear.Server(
        rng.root(0), hparams, state.student, hparams.options.mode if name == 'fedswitch_sl' else 'teacher'
    )
    server.contrasts = name == 'semisfl'
    run, rates, data = jax.jit(algorithm.round), [], federation()
    for ids, visits, k_s in ROUNDS:
        state, metrics = run(rng.root(0), state, data, cohort(ids, visits), jnp.int32(k_s))
        expected = server.run_round(data, ids, visits, k_s)
        for key, value in expected.items():
            np.testing.assert_allclose(metrics[key], value, rtol=2e-3, atol=1e-5, err_msg=key)
        linear.assert_close(state, server)
        rates.append(float(metrics['mask_rate']))
    assert any(0 < rate < 1 for rate in rates), rates  # rows on both sides of the threshold were compared
    padding = cohort(*ROUNDS[0][:2])
    lost = padding._replace(weight=jnp.zeros_like(padding.weight))
    state, _ = run(rng.root(0), state, data, lost, jnp.int32(1))
    assert run._cache_size() == 1, 'compiled again'
    server.run_round(data, [], [], 1)
    linear.assert_close(state, server)
    images = data.client_images[:6]
    x = np.asarray(toy.VIEWS.normalize(images), np.float64).reshape(6, -1)
    for who, logits in algorithm.predict(state, images).items():
        whole = getattr(server, who)
        np.testing.assert_allclose(logits, server.bottom(whole, x)[0] @ whole['top'], rtol=1e-3, atol=1e-3)


WHOLE = {
    'fixmatch, by images, keeps momentum': (
        'fedavg',
        {
            'local': Local(epochs=1, weighting='samples', optimizer_state='kept'),
            'consistency_weight': 0.3,
            'labeled_rows': 1,
            'server_trains': False,
        },
    ),
    'uda with annealed labels, after the server': (
        'fedprox',
        {
            'local': Local(objective='uda', prox=5.0),
            'uda': Uda(temperature=0.4, tsa='linear'),
            'labeled_rows': 2,
            'pre_rounds': 1,
        },
    ),
    'labels of the received model': (
        'fedavg',
        {'local': Local('pseudo_label', epochs=1, ramp_rounds=3), 'labeled_rows': 1, 'consistency_weight': 0.7},
    ),
    'mean teachers': (
        'fedavg',
        {
            'local': Local('mean_teacher', teacher_decay=0.6, input_noise=0.5, ramp_rounds=2),
            'labeled_rows': 2,
            'consistency_weight': 3.0,
        },
    ),
    'the switch': ('fedswitch', {'options': FedSwitch(beta_iid=0.5), 'labeled_rows': 1, 'ema_decay': 0.7}),
    'the teacher': ('fedswitch', {'options': FedSwitch('teacher'), 'ema_decay': 0.3}),
    'the student': ('fedswitch', {'options': FedSwitch('student'), 'local': Local(epochs=1)}),
    'labels alone': ('fedavg', {'local': Local('supervised'), 'labeled_rows': 4, 'server_trains': False}),
    'split, labels alone': (
        'splitfed',
        {'local': Local('supervised', epochs=2), 'labeled_rows': 4, 'server_trains': False, 'options': SplitFed('v1')},
    ),
    'one top for all': (
        'splitfed',
        {
            'local': Local('supervised', epochs=2, weighting='samples'),
            'labeled_rows': 4,
            'server_trains': False,
            'options': SplitFed('v2'),
            'optimizer': 'adam',
            'nesterov': False,
        },
    ),
}
MODES = 'the teacher', 'the student'


@pytest.mark.parametrize('case', slow_but(WHOLE, *(case for case in WHOLE if case not in MODES)))
def test_rounds_of_whole_models_equal_the_ones_in_numpy(case):
    """Client 0 has no label, so that it sits out where labels alone train."""
    name, changes = WHOLE[case]
    algorithm, hparams, state = start(name, {'threshold': 0.7, 'num_clients': 5, 'k_u': 2, **changes})
    if state.teacher:
        state = state.replace(teacher=jax.tree.map(lambda w: 1.3 * w, state.teacher))
    kind = linear_local.OneAfterAnother if case == 'one top for all' else linear_local.Server
    server = kind(name, rng.root(0), hparams, state.student, state.teacher)
    run, rates, shares = jax.jit(algorithm.round), [], set()
    for ids, visits, k_s in ROUNDS:
        state, metrics = run(rng.root(0), state, federation(), cohort(ids, visits), jnp.int32(k_s))
        for key, value in server.run_round(federation(), ids, visits, k_s).items():
            np.testing.assert_allclose(metrics[key], value, rtol=1e-3, atol=1e-5, err_msg=key)
        linear.assert_close(state, server, ('student', 'teacher') if state.teacher else ('student',))
        rates.append(float(metrics.get('mask_rate', 0.5)))
        shares.add(float(metrics.get('student_labels', 0.5)))
    assert run._cache_size() == 1, 'compiled again'
    assert case == 'mean teachers' or any(0 < rate < 1 for rate in rates), rates
    assert case in MODES or shares - {0.0, 1.0}, 'all clients trust the same'
    images = federation().client_images[:6]
    x = np.asarray(toy.VIEWS.normalize(images), np.float64).reshape(6, -1)
    for who, logits in algorithm.predict(state, images).items():
        np.testing.assert_allclose(logits, server.logits(getattr(server, who), x), rtol=1e-3, atol=2e-3)


@pytest.mark.slow
def test_fedprox_without_a_weight_is_fedavg_bit_for_bit():
    after = []
    for name in ('fedavg', 'fedprox'):
        algorithm, _, state = start(name, {'local': Local(prox=0.0)})
        after += jax.jit(algorithm.round)(rng.root(0), state, federation(), cohort(*ROUNDS[0][:2]), jnp.int32(2))[:1]
    chex.assert_trees_all_equal(*after)


PLAIN_SGD = {'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0}


def supervised(label_weight=1.0, **changes):
    """The compiled phase without a queue, (state, K_s) -> state, metrics, and the first state."""
    hparams = dataclasses.replace(toy.HPARAMS, **changes)
    phase = core.build_supervised(linear.model(), toy.VIEWS, hparams, label_weight)
    state = core.init_state(rng.root(0), linear.model(), teacher=False)
    run = jax.jit(phase)
    return lambda state, k_s: run(rng.root(0), state, federation(), jnp.int32(k_s), jnp.float32(0.1)), state, hparams


def test_the_weight_of_the_labels():
    """A step of plain SGD is as many times as long."""
    moves = []
    for weight in (1.0, 2.5):
        run, state, _ = supervised(weight, **PLAIN_SGD)
        after, metrics = run(state, 1)
        np.testing.assert_allclose(metrics['loss_supervised'], weight * metrics['loss_supervised_ce'], rtol=1e-6)
        moves.append(after.student.top['params']['w'] - state.student.top['params']['w'])
    np.testing.assert_allclose(moves[1], 2.5 * moves[0], rtol=1e-4, atol=1e-6)


def test_an_optimizer_that_is_kept_goes_on():
    """Two steps at once are one step and another."""
    run, state, hparams = supervised()
    state = state.replace(opt_state=optimizer(hparams, jnp.float32(0.1)).init(trainable(state.student)))
    together, _ = run(state, 2)
    one, _ = run(state, 1)
    after, _ = run(one, 1)
    chex.assert_trees_all_close(after, together, rtol=1e-6)
    fresh, _ = run(one.replace(opt_state=state.opt_state), 1)
    assert not np.allclose(fresh.student.top['params']['w'], after.student.top['params']['w'], rtol=1e-3)


def test_many_steps_read_what_single_steps_read():
    """More steps than are drawn at once."""
    run, state, hparams = supervised()
    state = state.replace(opt_state=optimizer(hparams, jnp.float32(0.1)).init(trainable(state.student)))
    steps = 2 * BLOCK + 3
    together, _ = run(state, steps)
    for _ in range(steps):
        state, _ = run(state, 1)
    chex.assert_trees_all_close(state, together, rtol=1e-5)


def test_rows_beyond_the_end_of_a_pass_count_nothing():
    """Of 12 images in batches of 5, the third has two: its loss and accuracy are theirs."""
    run, state, hparams = supervised(short_batches=True)
    _, metrics = run(state.replace(step=jnp.int32(2)), 1)
    rows, valid = sampling.server_pass_rows(rng.root(0), jnp.int32(2), 5, 12)
    np.testing.assert_array_equal(valid, [True, True, False, False, False])
    data, key = federation(), rng.fold(rng.root(0), 'supervised', 2)
    server = linear.Server(rng.root(0), hparams, state.student, 'student')
    x = server.pixels('supervised', rng.fold(key, 'views'), data.server_images[data.server_index[rows]])
    features, _ = server.bottom(server.student, x[:2], rng.fold(key, 'dropout', 'bottom'))
    logits = features @ server.student['top'] * linear.factor(rng.fold(key, 'dropout', 'top'))
    labels = np.asarray(data.server_labels[data.server_index[rows]])[:2]
    expected = linear.cross_entropies(logits, labels).mean()
    np.testing.assert_allclose(metrics['loss_supervised'], expected, rtol=1e-4)
    np.testing.assert_allclose(metrics['supervised_accuracy'], np.mean(logits.argmax(axis=1) == labels))


def test_who_sits_out_is_in_no_average():
    """Clients 1, 2 and 4 of 7, 11 and 19 images upload their numbers, and client 2 has nothing to train on."""

    def client(inputs, client_state, state, data, lr):
        own = inputs.id.astype(jnp.float32)
        return core.ClientOutput({'w': own}, client_state, {'own': own}, {}, participates=inputs.id != 2)

    hparams = dataclasses.replace(toy.HPARAMS, local=Local(weighting='samples'))
    run = core.build_local(client, hparams, received=lambda state: {'w': jnp.float32(-1.0)})
    state = core.init_state(rng.root(0), linear.model(), teacher=False)
    averaged, _, metrics = jax.jit(run)(rng.root(0), state, toy.federation(), toy.cohort([1, 2, 4]), jnp.float32(0.1))
    np.testing.assert_allclose(averaged['w'], (1 * 7 + 4 * 19) / (7 + 19), rtol=1e-6)
    np.testing.assert_allclose(metrics['own'], (1 + 4) / 2, rtol=1e-6)
    np.testing.assert_allclose(metrics['clients_sitting_out'], 1 / 3, rtol=1e-6)
