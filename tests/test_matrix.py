"""Every algorithm with every model family and both partitions, on one device and on eight: a round of each.

Models are narrow (tests/narrow.py), so that a round is a matter of compiling, and compiled once: both partitions, and
rounds with and without server steps, go through one program, which also shows that K_s compiles nothing anew. Eight
devices must give the numbers of one; what else they have to do stands in tests/test_devices.py. Some true sizes follow
at the end.

The rounds run in processes of their own, with eight devices made of the CPU and a compiler that does not optimize.
To run one of them by hand:

    MATRIX_FAMILIES=vgg13 XLA_FLAGS="$(python -m tests.test_matrix)" pytest tests/test_matrix.py -m '' -k fedavg

A new method has a ROW in its own tests (tests/rows.py).
"""

import functools
import os
import re
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax.extend import core as jax_core

from configs import default
from semisfl_jax import algorithms, core, models
from semisfl_jax import config as config_lib
from semisfl_jax.training import experiment, inputs
from tests import narrow, runs, toy_scenes
from tests.conftest import UNOPTIMIZED
from tests.marks import slow_but
from tests.rows import rows

ROWS = rows()
GROUPS = (  # families of one process
    'mlp5000 small_cnn cnn alexnet',
    'vgg13',
    'resnet9 resnet9_plain',
    'wresnet28x2',
    'cnn13',
    'scene_net',
)
# (method, family) of every run of the tests, on one device: all methods, and a model with dropout at the clients. The
# product is `slow`.
SELECTION = {(name, row.family) for name, row in ROWS.items()} | {('fedavg', 'cnn13'), ('fedavg', 'mlp5000')}
DEVICES = 8
# Families with BatchNorm that have the rounds of all methods on eight devices: how clients are divided is up to the
# method. Of other families, two methods have them
EVERY_METHOD = {'cnn13', 'scene_net'}
EVERY_FAMILY = {'semisfl', 'fedavg'}
PARTITIONS = ('uniform', 'dirichlet')
FLAGS = f'--xla_force_host_platform_device_count={DEVICES} {UNOPTIMIZED}'
INSIDE = os.environ.get('MATRIX_FAMILIES', '').split()


@pytest.mark.skipif(bool(INSIDE), reason='is that process')
def test_rounds_of_the_selection():
    """Runs the tests of this file on SELECTION."""
    runs.run_tests(__file__, flags=FLAGS, marks='not slow', MATRIX_FAMILIES=' '.join(GROUPS))


@pytest.mark.slow
@pytest.mark.skipif(bool(INSIDE), reason='is that process')
@pytest.mark.parametrize('families', GROUPS)
def test_rounds_of(families):
    """Runs the tests of this file on some families, but for SELECTION."""
    runs.run_tests(__file__, flags=FLAGS, marks='slow', MATRIX_FAMILIES=families)


def test_every_method_and_every_family_is_there():
    families = ' '.join(GROUPS).split()
    assert sorted(families) == sorted((*narrow.FAMILIES, *narrow.DENSE))
    assert set(narrow.FAMILIES) == set(models.ARCHITECTURES) - narrow.LIKE_OTHERS
    assert set(narrow.DENSE) == {
        name for name in models.DENSE_ARCHITECTURES if not name.startswith('deeplab')
    }  # in their tests
    assert {name for name, _ in SELECTION} == set(algorithms.METHODS)
    assert {family for _, family in SELECTION} <= set(families)


def fits(name, family):
    """Whether both are for dense tasks, or neither."""
    return algorithms.get(name).dense == (family in narrow.DENSE)


def cases(devices):
    """(algorithm, family) of the rounds on so many devices in this process."""
    with_clients = [name for name, method in algorithms.METHODS.items() if method.clients]

    def marks(*case):
        return () if devices == 1 and case in SELECTION else pytest.mark.slow

    if devices == 1:
        pairs = [(name, family) for family in INSIDE for name in algorithms.METHODS if fits(name, family)]
    else:
        pairs = [
            (name, family)
            for family in INSIDE
            for name in with_clients
            if (family in EVERY_METHOD or name in EVERY_FAMILY) and fits(name, family)
        ]
    return [pytest.param(*pair, id='-'.join(pair), marks=marks(*pair)) for pair in pairs]


class Result(NamedTuple):
    """A round, on the host."""

    before: core.State
    after: core.State
    metrics: dict
    cohort: np.ndarray  # ids


@functools.cache
def rounds(algorithm, family, devices):
    """{(partition, K_s): Result} of one program, which is not kept: those of all cases take gigabytes."""
    built = narrow.build(family, algorithm, devices)
    run, before = jax.jit(built.algorithm.round), narrow.initial(family, algorithm)
    state, results = core.replicate(built.mesh, before), {}
    for partition, k_s in (*((partition, 2) for partition in PARTITIONS), ('uniform', 0)):
        federation, cohort = narrow.inputs(family, algorithm, devices, partition)
        after, metrics = jax.device_get(run(built.key, state, federation, cohort, np.int32(k_s)))
        results[partition, k_s] = Result(before, after, metrics, np.asarray(cohort.ids))
    assert run._cache_size() == 1, 'compiled again'
    run.clear_cache()
    return results


def one_round(algorithm, family, devices, partition, k_s=2):
    return rounds(algorithm, family, devices)[partition, k_s]


def pieces(state):
    """The parts of a state that a Row names, those that are there."""
    state_pieces = {name: getattr(state, name) for name in ('queue', 'clients', 'server')}
    for who in ('student', 'teacher'):
        model = getattr(state, who)._asdict() if getattr(state, who) else {}
        state_pieces |= {f'{who}.{name}': piece['params'] for name, piece in model.items()}
        state_pieces[f'{who}.statistics'] = [piece.get('batch_stats', {}) for piece in model.values()]
    return {name: piece for name, piece in state_pieces.items() if jax.tree.leaves(piece)}


def still(piece, other):
    """Paths of the leaves that are the same in both, to the bit."""
    leaves = zip(jax.tree_util.tree_leaves_with_path(piece), jax.tree.leaves(other), strict=True)
    return {jax.tree_util.keystr(path) for (path, a), b in leaves if np.array_equal(a, b)}


def learned(path):
    """Whether every round of training moves a leaf of a model. A bias before BatchNorm has no gradient."""
    return path.endswith(("['kernel']", "['scale']", "['mean']", "['var']"))


@functools.cache
def explained():
    """The keys that docs/metrics.md explains."""
    rows = [line for line in (runs.ROOT / 'docs' / 'metrics.md').read_text().splitlines() if line.startswith('| `')]
    return {key for row in rows for key in re.findall('`([a-z_]+)`', row.split('|')[1])}


def check_moves(result, moves, where):
    before, after = pieces(result.before), pieces(result.after)
    named = {name for name in moves.split() if name in before or not name.endswith('statistics')}
    assert named <= set(before), where
    for name, piece in before.items():
        same = still(piece, after[name])
        if name not in named:
            assert len(same) == len(jax.tree.leaves(piece)), f'{where}: {name} moved'
        elif name in ('queue', 'clients', 'server'):
            assert len(same) < len(jax.tree.leaves(piece)), f'{where}: {name} stood still'
        else:
            assert not {path for path in same if learned(path)}, f'{where}: in {name}'
    absent = np.setdiff1d(np.arange(narrow.CLIENTS), result.cohort)
    kept = zip(
        jax.tree_util.tree_leaves_with_path(result.before.clients), jax.tree.leaves(result.after.clients), strict=True
    )
    for (path, old), new in kept:
        own = absent
        task = getattr(next(iter(path), None), 'key', None)
        if task in toy_scenes.TASKS:  # its clients, numbered from 0
            own = absent[absent % 2 == toy_scenes.TASKS.index(task)] // 2
        np.testing.assert_array_equal(old[own], new[own], err_msg=f'{where}: clients that were not there')


# Means over the right or the wrong pseudo-labels, of which so small a round may have none: on some processors it does.
MAYBE_OF_NONE = {'weight_right', 'weight_wrong'}


@pytest.mark.parametrize('partition', PARTITIONS)
@pytest.mark.parametrize(('algorithm', 'family'), cases(1))
def test_a_round_moves_what_it_should(algorithm, family, partition):
    row, result = ROWS[algorithm], one_round(algorithm, family, 1, partition)
    assert jax.tree.map(np.shape, result.before) == jax.tree.map(np.shape, result.after)
    for path, leaf in jax.tree_util.tree_leaves_with_path(result.after):
        assert np.all(np.isfinite(leaf)), path
    assert int(result.after.round) == 1
    assert int(result.after.step) == (2 if 'loss_supervised' in result.metrics else 0)  # of the server
    check_moves(result, row.round, 'a round')
    not_numbers = {name for name, value in result.metrics.items() if not np.isfinite(value)} - MAYBE_OF_NONE
    assert not_numbers == (set() if row.unlabeled else set(core.no_cross_entity()) & set(result.metrics))

    assert set(result.metrics) <= explained(), 'docs/metrics.md has a row for each metric'

    built = narrow.build(family, algorithm)
    logits = jax.eval_shape(built.algorithm.predict, result.after, built.dataset.test_images[:3])
    assert built.algorithm.headline in logits
    if algorithms.get(algorithm).dense:
        shapes = {name: {value.shape for value in jax.tree.leaves(maps)} for name, maps in logits.items()}
        assert shapes == {'semseg': {(3, 16, 16, 3)}, 'depth': {(3, 16, 16, 1)}}
    else:
        assert {value.shape for value in logits.values()} == {(3, 10)}


@pytest.mark.parametrize(('algorithm', 'family'), cases(1))
def test_without_server_steps_only_the_work_of_clients_moves(algorithm, family):
    check_moves(one_round(algorithm, family, 1, 'uniform', k_s=0), ROWS[algorithm].clients, 'without server steps')


@pytest.mark.parametrize('partition', PARTITIONS)
@pytest.mark.parametrize(('algorithm', 'family'), cases(DEVICES))
def test_eight_devices_give_the_round_of_one(algorithm, family, partition):
    """To 1 % of the largest number of a leaf: BatchNorm over two or eight rows divides by small deviations, and makes
    much of the other order of sums. An update of a wrong share of clients is an eighth off, at the least."""
    # With AVX2 a rounding decides which pixel of a window is the largest, and moves a leaf of six numbers by 3 %
    bound = 1e-2 if runs.processor_has('avx512f') else 5e-2
    one, many = (one_round(algorithm, family, devices, partition) for devices in (1, DEVICES))
    check_moves(many, ROWS[algorithm].round, 'on eight devices')
    assert one.metrics.keys() == many.metrics.keys()
    for name, value in one.metrics.items():
        np.testing.assert_allclose(many.metrics[name], value, rtol=1e-2, atol=1e-3, err_msg=name)
    moved, expected = (jax.tree.map(lambda new, old: np.float64(new) - old, r.after, r.before) for r in (many, one))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(moved), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=bound * np.max(np.abs(b), initial=1e-4), err_msg=str(path))


TRUE = (('semisfl', 'alexnet'), ('fedavg', 'resnet9'))


@pytest.mark.slow
@pytest.mark.skipif(bool(INSIDE), reason='in the process that started this one')
@pytest.mark.parametrize(('algorithm', 'model'), TRUE)
def test_a_round_at_true_size(algorithm, model):
    """Two clients of four, two images each, two iterations, augmented views: true layers, tiny counts."""
    config = default.get_config()
    config.algorithm, config.model.name = algorithm, model
    config.data.update(name='cifar10', fake=True, fake_size=200, num_labeled=20)
    config.federation.update(num_clients=4, num_active=2, partition='dirichlet', alpha=0.5)
    config.update(k_s=2, k_u=2, batch_size=2, server_batch_size=4, queue_size=16)
    built = experiment.build(config_lib.resolve(config))
    before = jax.jit(built.algorithm.init)(built.key)
    federation, cohort, _ = next(inputs.inputs(built, 0))
    after, metrics = jax.jit(built.algorithm.round)(built.key, before, federation, cohort, np.int32(2))
    check_moves(Result(*jax.device_get((before, after, metrics)), np.asarray(cohort.ids)), ROWS[algorithm].round, '')
    losses = metrics['loss_supervised'], metrics['loss_unlabeled']
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((after, losses)))
    logits = built.algorithm.predict(after, built.dataset.test_images[:3])
    assert {value.shape for value in logits.values()} == {(3, 10)}


def equations(jaxpr):
    """All equations of a program and of the programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax_core.jaxprs_in_params(equation.params):
            yield from equations(inner)


@pytest.mark.skipif(bool(INSIDE), reason='in the process that started this one')
@pytest.mark.parametrize(
    'algorithm',
    # whole and split models, passes over sets, gradients of gradients
    slow_but(['fedavg', 'semisfl', 'splitfed', 'semifl', 'feddure'], 'fedavg'),
)
def test_a_round_takes_the_lowering_that_is_asked_for(algorithm):
    """In all passes of server and clients: patches leave no convolution; direct ones are of the one form that XLA's CPU
    backend computes fast, clients in a loop; native ones have gradients in other forms."""

    def convolutions(convolution, client_map):
        built = narrow.build('alexnet', algorithm, convolution=convolution, client_map=client_map)
        state = jax.eval_shape(built.algorithm.init, built.key)
        jaxpr = jax.make_jaxpr(built.algorithm.round)(built.key, state, *next(inputs.inputs(built, 0))[:2], np.int32(2))
        parameters = [e.params for e in equations(jaxpr.jaxpr) if e.primitive.name == 'conv_general_dilated']
        fast = jax.lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
        return [
            p['dimension_numbers'] == fast and p['feature_group_count'] * p['batch_group_count'] == 1
            for p in parameters
        ]

    assert not convolutions('patches', 'vmap')
    direct = convolutions('direct', 'loop')
    assert direct
    assert all(direct)
    native = convolutions('native', 'vmap')
    assert native
    assert not all(native)


if __name__ == '__main__':
    print(FLAGS)
