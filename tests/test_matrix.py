"""Every algorithm with every model family and both partitions, on one device and on eight: a round of each.

Models are narrow (tests/narrow.py), so that a round is a matter of compiling, and compiled once: both partitions, and
rounds with and without server steps, go through one program, which also shows that K_s compiles nothing anew. One
device takes all families. Eight take two, one with BatchNorm and dropout and one with neither, and must give the
numbers of one; what else eight devices have to do stands in tests/test_devices.py. Some true sizes follow at the end.

The rounds run in processes of their own, with eight devices made of the CPU and a compiler that does not optimise.
To run one of them by hand:

    MATRIX_FAMILIES=vgg13 XLA_FLAGS="$(python -m tests.test_matrix)" pytest tests/test_matrix.py -k fedavg

A new method needs one row in ROWS.
"""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from semisfl_jax import algorithms, models, parallel, phases
from tests import narrow, runs

STUDENT, TEACHER = 'student.bottom student.top', 'teacher.bottom teacher.top'
HEADS = 'student.proj teacher.proj'


class Row(NamedTuple):
    """What a round of a method moves. Pieces that are not named stay as they are, to the bit.

    A piece is a model's `student.bottom`, …, `teacher.proj`, or `memory`, `clients` or `server` as a whole. In a model,
    every kernel moves and every statistic of BatchNorm; of `clients`, rows of the cohort, and no others.
    """

    round: str  # pieces that move in a whole round
    clients: str  # of them, those that move where the server makes no steps of its own (K_s is 0)
    keys: tuple = ()  # pairs of the configuration, that the method needs beside narrow.ROUND
    unlabeled: bool = True  # reads images without labels, and so has numbers in phases.no_cross_entity


ROWS = {
    'semisfl': Row(f'{STUDENT} {TEACHER} {HEADS}', f'{STUDENT} student.proj'),
    'supervised_only': Row(f'{STUDENT} {TEACHER}', '', unlabeled=False),
    'fedavg': Row(STUDENT, STUDENT),
    'fedprox': Row(STUDENT, STUDENT),
    'fedswitch': Row(f'{STUDENT} {TEACHER}', STUDENT),
}
GROUPS = ('small_cnn cnn alexnet', 'vgg13', 'resnet9 resnet9_plain', 'wresnet28x2')  # families of one process
SPREAD = ('vgg13', 'cnn')  # families of eight devices
DEVICES = 8
PARTITIONS = ('uniform', 'dirichlet')
FLAGS = (
    f'--xla_force_host_platform_device_count={DEVICES} --xla_backend_optimization_level=0 '
    '--xla_llvm_disable_expensive_passes=true --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters'
)
INSIDE = os.environ.get('MATRIX_FAMILIES', '').split()


@pytest.mark.skipif(bool(INSIDE), reason='is that process')
@pytest.mark.parametrize('families', GROUPS)
def test_rounds_of(families):
    """Runs the tests of this file on some families."""
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', str(Path(__file__))],
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        env=os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': FLAGS, 'MATRIX_FAMILIES': families},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    print(result.stdout)


def test_every_method_and_every_family_is_there():
    assert set(ROWS) == set(algorithms.NAMES), 'each algorithm has one row in ROWS of tests/test_matrix.py'
    families = ' '.join(GROUPS).split()
    assert sorted(families) == sorted(narrow.FAMILIES)
    assert set(narrow.FAMILIES) == set(models.NAMES) - {'vgg16'}
    assert set(SPREAD) <= set(families)


def cases(devices):
    """(algorithm, family) of the rounds on so many devices in this process."""
    families = [family for family in INSIDE if devices == 1 or family in SPREAD]
    names = [name for name in algorithms.NAMES if devices == 1 or name not in algorithms.SERVER_ONLY]
    return [pytest.param(name, family, id=f'{name}-{family}') for family in families for name in names]


class Result(NamedTuple):
    """A round, on the host."""

    before: phases.State
    after: phases.State
    metrics: dict
    cohort: np.ndarray  # ids


def keys_of(algorithm):
    assert algorithm in ROWS, f'{algorithm} has no row in ROWS of tests/test_matrix.py'
    return ROWS[algorithm].keys


@functools.cache
def program(algorithm, family, devices):
    built = narrow.build(family, algorithm, devices, keys=keys_of(algorithm))
    return built, jax.jit(built.algorithm.round)


@functools.cache
def one_round(algorithm, family, devices, partition, k_s=2):
    built, run = program(algorithm, family, devices)
    before = narrow.initial(family, algorithm, keys_of(algorithm))
    federation, cohort = narrow.inputs(family, algorithm, devices, partition, keys_of(algorithm))
    state = parallel.replicate(built.mesh, before)
    after, metrics = jax.device_get(run(built.key, state, federation, cohort, np.int32(k_s)))
    assert run._cache_size() == 1, 'compiled again'
    return Result(before, after, metrics, np.asarray(cohort.ids))


def pieces(state):
    """The parts of a state that a Row names, those that are there."""
    found = {
        f'{who}.{name}': piece
        for who in ('student', 'teacher')
        for name, piece in (getattr(state, who)._asdict() if getattr(state, who) else {}).items()
    }
    found |= {name: getattr(state, name) for name in ('memory', 'clients', 'server')}
    return {name: piece for name, piece in found.items() if jax.tree.leaves(piece)}


def still(piece, other):
    """Paths of the leaves that are the same in both, to the bit."""
    leaves = zip(jax.tree_util.tree_leaves_with_path(piece), jax.tree.leaves(other), strict=True)
    return {jax.tree_util.keystr(path) for (path, a), b in leaves if np.array_equal(a, b)}


def learned(path):
    """Whether every round of training moves a leaf of a model. A bias before BatchNorm has no gradient."""
    return path.endswith(("['kernel']", "['scale']", "['mean']", "['var']"))


def check_moves(result, moves, where):
    before, after = pieces(result.before), pieces(result.after)
    assert set(moves.split()) <= set(before), where
    for name, piece in before.items():
        same = still(piece, after[name])
        if name not in moves.split():
            assert len(same) == len(jax.tree.leaves(piece)), f'{where}: {name} moved'
        elif name in ('memory', 'clients', 'server'):
            assert len(same) < len(jax.tree.leaves(piece)), f'{where}: {name} stood still'
        else:
            assert not {path for path in same if learned(path)}, f'{where}: in {name}'
    absent = np.setdiff1d(np.arange(narrow.CLIENTS), result.cohort)
    for old, new in zip(jax.tree.leaves(result.before.clients), jax.tree.leaves(result.after.clients), strict=True):
        np.testing.assert_array_equal(old[absent], new[absent], err_msg=f'{where}: clients that were not there')


@pytest.mark.parametrize('partition', PARTITIONS)
@pytest.mark.parametrize(('algorithm', 'family'), cases(1))
def test_a_round_moves_what_it_should(algorithm, family, partition):
    row, result = ROWS[algorithm], one_round(algorithm, family, 1, partition)
    assert jax.tree.map(np.shape, result.before) == jax.tree.map(np.shape, result.after)
    for path, leaf in jax.tree_util.tree_leaves_with_path(result.after):
        assert np.all(np.isfinite(leaf)), path
    assert int(result.after.round) == 1
    check_moves(result, row.round, 'a round')
    not_numbers = {name for name, value in result.metrics.items() if not np.isfinite(value)}
    assert not_numbers == (set() if row.unlabeled else set(phases.no_cross_entity()) & set(result.metrics))

    built, _ = program(algorithm, family, 1)
    logits = jax.eval_shape(built.algorithm.predict, result.after, built.dataset.test_images[:3])
    assert built.algorithm.headline in logits
    assert {value.shape for value in logits.values()} == {(3, 10)}


@pytest.mark.parametrize(('algorithm', 'family'), cases(1))
def test_without_server_steps_only_the_work_of_clients_moves(algorithm, family):
    check_moves(one_round(algorithm, family, 1, 'uniform', k_s=0), ROWS[algorithm].clients, 'without server steps')


@pytest.mark.parametrize('partition', PARTITIONS)
@pytest.mark.parametrize(('algorithm', 'family'), cases(DEVICES))
def test_eight_devices_give_the_round_of_one(algorithm, family, partition):
    """To 1 % of the largest number of a leaf: BatchNorm over two or eight rows divides by small deviations, and makes
    much of the other order of sums. An update of a wrong share of clients is an eighth off, at the least."""
    one, many = (one_round(algorithm, family, devices, partition) for devices in (1, DEVICES))
    check_moves(many, ROWS[algorithm].round, 'on eight devices')
    assert one.metrics.keys() == many.metrics.keys()
    for name, value in one.metrics.items():
        np.testing.assert_allclose(many.metrics[name], value, rtol=1e-2, atol=1e-3, err_msg=name)
    moved, expected = (jax.tree.map(lambda new, old: np.float64(new) - old, r.after, r.before) for r in (many, one))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(moved), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-2 * np.max(np.abs(b), initial=1e-4), err_msg=str(path))


if __name__ == '__main__':
    print(FLAGS)
