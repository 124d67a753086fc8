"""A round of every method on a narrow model with BatchNorm (tests/helpers/narrow.py), on one device and on eight; and
of SemiSFL on every other model.

Rounds with and without server steps, of both partitions, go through one program, which also shows that K_s compiles
nothing anew. Eight devices must give the numbers of one; what else they have to do stands in
tests/end_to_end/test_devices.py. They are made of the CPU, in a process of its own. To run one of its cases by hand:

    export XLA_FLAGS="$(python -m tests.end_to_end.test_matrix)"
    pytest tests/end_to_end/test_matrix.py -m '' -k fedavg

A new method has an entry of ROWS in its tests (tests/helpers/rows.py).
"""

import functools
import os
from typing import NamedTuple

import jax
import numpy as np
import pytest

from semisfl_jax import algorithms, core, models
from semisfl_jax.config import metric_help
from semisfl_jax.training.driver import Driver
from tests.conftest import UNOPTIMIZED
from tests.end_to_end.test_devices import CASES as TOYS
from tests.helpers import narrow, runs, toy_scenes
from tests.helpers.marks import slow_but
from tests.helpers.rows import NORMED, rows

ROWS = rows()
DEVICES = 8
FLAGS = f'--xla_force_host_platform_device_count={DEVICES} {UNOPTIMIZED}'
INSIDE = os.environ.get('XLA_FLAGS') == FLAGS


def test_families_are_all_models():
    assert set(narrow.FAMILIES) == set(models.ARCHITECTURES) - narrow.LIKE_OTHERS | {NORMED}
    dense = {name for name in models.DENSE_ARCHITECTURES if not name.startswith('deeplab')}  # in their tests
    assert set(narrow.DENSE) == dense


@pytest.mark.slow
@pytest.mark.skipif(INSIDE, reason='is that process')
def test_rounds_of_all_methods_pass_in_a_process_of_eight_devices():
    runs.run_tests(__file__, flags=FLAGS, marks='slow')


class Result(NamedTuple):
    """A round, on the host."""

    before: core.State
    after: core.State
    metrics: dict
    cohort: np.ndarray  # ids


@functools.cache
def rounds(method, family, devices=1):
    """{K_s: Result} of one program, which is not kept: those of all cases take gigabytes."""
    built = narrow.build(family, method, devices)
    run, before = jax.jit(built.algorithm.round), narrow.initial(family, method)
    state, results = core.clients.replicate(built.mesh, before), {}
    for k_s, partition in ((2, 'dirichlet'), (0, 'uniform')):
        federation, cohort = narrow.inputs(family, method, devices, partition)
        after, metrics = jax.device_get(run(built.key, state, federation, cohort, np.int32(k_s)))
        results[k_s] = Result(before, after, metrics, np.asarray(cohort.ids))
    assert run._cache_size() == 1, 'compiled again'
    run.clear_cache()
    return results


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
MAYBE_OF_NONE = 'weight_right', 'weight_wrong'  # and what begins so


def check(method, family, devices=1):
    row, results = ROWS[method], rounds(method, family, devices)
    result = results[2]
    assert jax.tree.map(np.shape, result.before) == jax.tree.map(np.shape, result.after)
    for path, leaf in jax.tree_util.tree_leaves_with_path(result.after):
        assert np.all(np.isfinite(leaf)), path
    assert int(result.after.round) == 1
    assert int(result.after.step) == (2 if 'loss_supervised' in result.metrics else 0)  # of the server
    check_moves(result, row.round, 'a round')
    check_moves(results[0], row.clients, 'without server steps')
    numbers = {name: value for name, value in result.metrics.items() if not name.startswith(MAYBE_OF_NONE)}
    not_numbers = {name for name, value in numbers.items() if not np.isfinite(value)}
    assert not_numbers == (set() if row.unlabeled else set(core.cross_entity.no_cross_entity()) & set(result.metrics))
    assert set(result.metrics) <= metric_help.by_key().keys()

    built = narrow.build(family, method)
    logits = jax.eval_shape(built.algorithm.predict, result.after, built.dataset.test_images[:3])
    assert built.algorithm.headline in logits
    if algorithms.get(method).dense:
        shapes = {name: {value.shape for value in jax.tree.leaves(maps)} for name, maps in logits.items()}
        assert shapes == {'semseg': {(3, 16, 16, 3)}, 'depth': {(3, 16, 16, 1)}}
    else:
        assert {value.shape for value in logits.values()} == {(3, 10)}


outside = pytest.mark.skipif(INSIDE, reason='in the process that started this one')


# Of each, the update over clients is another method's: of Fed-SHVR, FedAvg, and M-Fed
LIKE_OTHERS = 'fed_sh', 'fed_svr', 'fedprox', 'mfed_fl'
IMAGES = [name for name in ROWS if not algorithms.get(name).dense]


@outside
@pytest.mark.parametrize('method', slow_but(IMAGES, *set(IMAGES) - set(LIKE_OTHERS)))
def test_a_round_moves_what_it_should(method):
    check(method, ROWS[method].family)


@outside
@pytest.mark.slow
@pytest.mark.parametrize('family', sorted(set(narrow.FAMILIES) - {NORMED}))
def test_a_round_in_every_family(family):
    """Methods call a model's pieces, whatever is in them."""
    check('semisfl', family)


def on_eight():
    """Methods with clients, but for those that tests/end_to_end/test_devices.py compares on a model with BatchNorm,
    and LIKE_OTHERS."""
    compared = {case.algorithm for case in TOYS.values() if not case.linear} | set(LIKE_OTHERS)
    return [name for name in ROWS if algorithms.get(name).clients and name not in compared]


@pytest.mark.slow
@pytest.mark.skipif(not INSIDE, reason='runs in a process of its own')
@pytest.mark.parametrize('method', on_eight())
def test_a_round_on_eight_devices_equals_one_on_one(method):
    """On eight devices to 1 % of the largest number of a leaf: BatchNorm over two or eight rows divides by small
    deviations, and makes much of the other order of sums. An update of a wrong share of clients is an eighth off, at
    the least."""
    family = ROWS[method].family
    for devices in (1, DEVICES):
        check(method, family, devices)
    # With AVX2 a rounding decides which pixel of a window is the largest, and moves a leaf of six numbers by 3 %
    bound = 1e-2 if runs.processor_has('avx512f') else 5e-2
    one, many = (rounds(method, family, devices)[2] for devices in (1, DEVICES))
    assert one.metrics.keys() == many.metrics.keys()
    for name, value in one.metrics.items():
        np.testing.assert_allclose(many.metrics[name], value, rtol=1e-2, atol=1e-3, err_msg=name)
    moved, expected = (jax.tree.map(lambda new, old: np.float64(new) - old, r.after, r.before) for r in (many, one))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(moved), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=bound * np.max(np.abs(b), initial=1e-4), err_msg=str(path))


@outside
@pytest.mark.slow
@pytest.mark.parametrize(
    'algorithm',
    slow_but(['fedavg', 'semisfl', 'semifl', 'feddure'], 'fedavg'),  # passes over sets, gradients of gradients
)
def test_a_round_takes_the_lowering_that_is_asked_for(algorithm):
    """In all passes of server and clients: patches leave no convolution; direct ones are of the one form that XLA's CPU
    backend computes fast, clients in a loop; native ones have gradients in other forms."""

    def convolutions(convolution, client_map):
        built = narrow.build('alexnet', algorithm, convolution=convolution, client_map=client_map)
        state = jax.eval_shape(built.algorithm.init, built.key)
        federation, cohort, _ = next(Driver([built]).inputs(0))
        jaxpr = jax.make_jaxpr(built.algorithm.round)(built.key, state, federation, cohort, np.int32(2))
        parameters = [e.params for e in runs.equations(jaxpr.jaxpr) if e.primitive.name == 'conv_general_dilated']
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
