"""One device and eight, made of the CPU in a process of its own, in which this file is read again: the same numbers."""

import dataclasses
import functools
import os

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jax_core

from semisfl_jax import algorithms, core, data
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms.fedmatch import FedMatch
from semisfl_jax.algorithms.fedswitch import FedSwitch
from semisfl_jax.algorithms.semifl import SemiFL
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.hparams import Local
from semisfl_jax.core.types import Cohort
from semisfl_jax.training import experiment
from semisfl_jax.training.driver import Driver
from tests.conftest import UNOPTIMIZED
from tests.helpers import linear, needs, runs, toy
from tests.helpers.marks import slow_but

DEVICES = 8
FLAG = f'--xla_force_host_platform_device_count={DEVICES}'
INSIDE = FLAG in os.environ.get('XLA_FLAGS', '')
inside = pytest.mark.skipif(not INSIDE, reason='runs in a process of its own')


@pytest.mark.skipif(INSIDE, reason='is that process')
@pytest.mark.parametrize(
    ('flags', 'marks'),
    [
        pytest.param(UNOPTIMIZED, 'not slow', id='every time'),
        pytest.param(UNOPTIMIZED, 'slow and not as_for_users', marks=pytest.mark.slow, id='slow'),
        pytest.param('--xla_llvm_disable_expensive_passes=true', 'as_for_users', marks=pytest.mark.slow, id='bytes'),
    ],
)
def test_the_tests_of_this_file_pass_on_eight_devices(flags, marks):
    """Runs all other tests of this file that have these marks."""
    runs.run_tests(__file__, flags=f'{FLAG} {flags}', marks=marks)


@dataclasses.dataclass(frozen=True)
class Case:
    """Two rounds of a toy experiment."""

    algorithm: str = 'semisfl'
    active: int = 8
    hparams: tuple = ()  # what differs from toy.HPARAMS
    chunk: int = 0
    labels_at_clients: bool = False
    streamed: bool = False
    top_norm: bool = False
    linear: bool = False  # the model of tests/helpers/linear.py, whose programs are small


CLIENTS = 12


def build(case, devices):
    """Method and mesh."""
    mesh = core.clients.make_mesh(devices)
    axis = core.clients.client_axis(case.chunk, 'auto', mesh, case.active)
    axes = (core.clients.AXIS,) if mesh else ()
    model = toy.model(split_index=1 if case.top_norm else None, axes=axes, top_norm=case.top_norm)
    model = linear.model() if case.linear else model
    hparams = dataclasses.replace(toy.HPARAMS, **{'threshold': 0.9, **dict(case.hparams)})
    algorithm = algorithms.build(case.algorithm, model, toy.VIEWS, hparams, axis)
    return algorithm._replace(round=core.clients.shard_round(mesh, algorithm.round)), mesh, hparams


def inputs(case, mesh, hparams, index):
    """Federation and cohort of a round, on the devices."""
    federation = toy.federation(CLIENTS, case.labels_at_clients)
    ids = (np.arange(case.active) + 3 * index) % CLIENTS
    visits = np.full(CLIENTS, index, np.int32)
    cohort = data.make_cohort(ids, visits, core.clients.padded_size(mesh, case.active))
    divided = Cohort(*(core.clients.shard(mesh, x.shape, np.asarray(x).__getitem__) for x in cohort))
    placed = core.clients.replicate(mesh, federation)
    if case.streamed:
        reads = 'sets' if case.algorithm == 'semifl' else 'batches'
        rows, _ = sampling.rows(reads, rng.root(0), federation, cohort, hparams.batches)
        images, labels = np.asarray(federation.client_images), np.asarray(federation.client_labels)
        empty = placed.replace(client_images=placed.client_images[:0])
        host = data.HostFederation(empty, images, labels)
        placed = host.streamed(rows, reads, place=functools.partial(core.clients.shard, mesh))
    return placed, divided


def two_rounds(case, devices):
    """State and metrics after each round. A louder top lets pseudo-labels fall on both sides of the threshold."""
    algorithm, mesh, hparams = build(case, devices)
    run = jax.jit(algorithm.round, donate_argnums=1)
    state = algorithm.init(rng.root(0))
    student = state.student._replace(top=jax.tree.map(lambda w: 5.0 * w, state.student.top))
    teacher = jax.tree.map(jnp.copy, student) if state.teacher else ()
    state = core.clients.replicate(mesh, state.replace(student=student, teacher=teacher))
    key, results = core.clients.replicate(mesh, rng.root(0)), []
    for index, k_s in enumerate((2, 3)):
        state, metrics = run(key, state, *inputs(case, mesh, hparams, index), np.int32(k_s))
        results.append(jax.device_get((state, metrics)))
    assert run._cache_size() == 1
    return results, state


CASES = {
    'plain': Case(labels_at_clients=True, hparams=(('labeled_rows', 1), ('threshold', 0.999)), linear=True),
    'padded': Case(active=10, chunk=1, streamed=True, linear=True, hparams=(('queue', 'off'),)),
    'top_norm': Case(
        top_norm=True,
        hparams=(('queue', 'single_ring'), ('client_teacher_ema', True), ('client_teacher_bn', 'train')),
    ),
    'fedavg': Case(
        algorithm='fedavg',
        linear=True,
        active=10,
        labels_at_clients=True,
        hparams=(
            ('local', Local(epochs=1, weighting='samples', optimizer_state='kept')),
            *(('labeled_rows', 1), ('num_clients', CLIENTS), ('threshold', 0.999)),
        ),
    ),
    'fedmatch': Case(
        algorithm='fedmatch',
        linear=True,
        active=10,
        labels_at_clients=True,
        hparams=(
            ('options', FedMatch(helper_every=2, helpers_persist=True, lambda_a=1.0, lambda_i=0.5)),
            *(('labeled_rows', 1), ('num_clients', CLIENTS), ('threshold', 0.95)),
        ),
    ),
    'fedswitch_sl': Case(
        algorithm='fedswitch_sl',
        linear=True,
        active=10,
        hparams=(('options', FedSwitch(beta_iid=0.6)), ('k_u', 4), ('threshold', 0.999)),
    ),
    'splitfed': Case(
        algorithm='splitfed',
        active=10,
        labels_at_clients=True,
        streamed=True,
        top_norm=True,
        hparams=(('labeled_rows', 4), ('local', Local(epochs=1, weighting='samples'))),
    ),
    'semifl': Case(
        algorithm='semifl',
        active=10,
        top_norm=True,
        hparams=(
            ('local', Local(epochs=1, optimizer_state='kept')),
            *(('options', SemiFL('server_first', pass_batch_size=16)), ('num_clients', CLIENTS), ('threshold', 0.97)),
        ),
    ),
}


@inside
@pytest.mark.parametrize('name', slow_but(CASES, 'plain'))
def test_eight_devices_give_the_numbers_of_one_and_all_the_same_bits(name):
    one, (many, last) = two_rounds(CASES[name], 1)[0], two_rounds(CASES[name], DEVICES)
    # Only the order of sums differs, but a row at the threshold may fall on its other side.
    for (state, metrics), (other, others) in zip(one, many, strict=True):
        assert metrics.keys() == others.keys()
        for key in metrics:
            # A loss near 0 is a difference of logits of some hundreds, of which float32 has 24 bits: 300 / 2^24 = 2e-5.
            atol = 2e-5 if 'loss' in key else 1e-6
            np.testing.assert_allclose(others[key], metrics[key], rtol=2e-4, atol=atol, err_msg=key)
        models = (((x.student, x.teacher), (x.clients, x.server)) for x in (state, other))
        chex.assert_trees_all_close(*models, rtol=2e-3, atol=2e-5)
    for leaf in jax.tree.leaves(last):
        first, *others = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        assert len(others) == DEVICES - 1
        for other in others:
            np.testing.assert_array_equal(first, other)
    if name == 'splitfed':  # no pseudo-labels
        return
    rates = [float(metrics['mask_rate']) for _, metrics in one]
    assert any(0.02 < rate < 0.98 for rate in rates), rates  # both sides of the threshold were compared


def equations(jaxpr, inside_scan=False):
    """(equation, whether it is in a scan) of a program and all programs in it."""
    for equation in jaxpr.eqns:
        yield equation, inside_scan
        for inner in jax_core.jaxprs_in_params(equation.params):
            yield from equations(inner, inside_scan or equation.primitive.name == 'scan')


def collectives(name, devices=DEVICES):
    """[(primitive, whether in the scan over iterations, shapes and types of its operands)] of a round."""
    case = CASES[name]
    algorithm, mesh, hparams = build(case, devices)
    arguments = rng.root(0), algorithm.init(rng.root(0)), *inputs(case, mesh, hparams, 0), np.int32(2)
    all_equations = equations(jax.make_jaxpr(algorithm.round)(*arguments).jaxpr)
    return [
        (equation.primitive.name, in_scan, [(x.aval.shape, str(x.aval.dtype)) for x in equation.invars])
        for equation, in_scan in all_equations
        if core.clients.AXIS in (*equation.params.get('axes', ()), *equation.params.get('axis_name', ()))
    ]


@inside
@pytest.mark.parametrize(('name', 'clients'), slow_but([('plain', 1), ('padded', 2)], ('plain', 1)))
def test_an_iteration_sums_one_gradient_and_gathers_keys_labels_and_flags(name, clients):
    """Shapes are those of one device: `clients` of them, 4 images each."""
    calls = collectives(name)
    model = linear.model() if CASES[name].linear else toy.model()
    student = jax.eval_shape(model.init, rng.root(0))
    numbers = {piece: sum(leaf.size for leaf in jax.tree.leaves(getattr(student, piece))) for piece in student._fields}
    sums = [operands for primitive, in_scan, operands in calls if in_scan and primitive.startswith('psum')]
    assert sums == [[((numbers['top'] + numbers['proj'],), 'float32')]]
    others = [(primitive, *operands) for primitive, in_scan, operands in calls if in_scan and 'psum' not in primitive]
    rows = 4 * clients
    assert others == [
        ('all_gather', ((rows, model.projection_size), 'float32')),
        ('all_gather', ((rows,), 'int32')),
        ('all_gather', ((rows,), 'bool')),
    ]

    outside = [(primitive, operands) for primitive, in_scan, operands in calls if not in_scan]
    assert [operands for primitive, operands in outside if 'psum' not in primitive] == [[((rows,), 'bool')]]
    sums = [operands for primitive, operands in outside if primitive.startswith('psum')]
    bottom = (numbers['bottom'],)  # the average of the bottoms, once a round; the rest is weights, losses and counts
    assert sorted(shape for ((shape, _),) in sums) == sorted([(2,), (1,), bottom, (3 * toy.HPARAMS.k_u,), (4,)])


@inside
def test_an_iteration_without_clustering_gathers_nothing():
    """One sum of the top's gradient, and no messages of keys."""
    student = jax.eval_shape(linear.model().init, rng.root(0))
    top = sum(leaf.size for leaf in jax.tree.leaves(student.top))
    gathered = [operands for _, in_scan, operands in collectives('fedswitch_sl') if in_scan]
    assert gathered == [[((top,), 'float32')]]


@inside
@pytest.mark.parametrize('name', slow_but(['fedavg', 'splitfed', 'semifl'], 'fedavg'))
def test_local_training_meets_nobody_before_its_end(name):
    """One average of models and a few numbers, and what clients keep, each row from where it was computed."""
    calls = collectives(name)
    assert not any(in_scan for _, in_scan, _ in calls)
    size = sum(
        leaf.size for leaf in jax.tree.leaves(jax.eval_shape(build(CASES[name], 1)[0].init, rng.root(0)).student)
    )
    sums = [
        np.prod(shape, dtype=int) for primitive, _, operands in calls if 'psum' in primitive for shape, _ in operands
    ]
    assert sorted(sums)[-1] == size
    assert sum(sums) < size + 20
    gathered = [shape for primitive, _, operands in calls if 'psum' not in primitive for shape, _ in operands]
    assert bool(gathered) == (name in ('fedavg', 'semifl'))
    assert all(shape[0] == 2 for shape in gathered)  # clients of one device


@inside
def test_one_device_has_no_collective():
    assert collectives('plain', devices=1) == []


# --- runs

RUN = {'federation__num_active': 8, 'rounds': 4, 'diagnostics_every': 4}


@pytest.fixture(scope='module')
def run_of_eight(tmp_path_factory):
    """A run on eight devices."""
    folder = tmp_path_factory.mktemp('eight') / 'run'
    assert runs.run(folder, **RUN, parallel__devices=0) == 0
    return folder


@inside
@pytest.mark.slow
def test_the_command_on_eight_devices_and_on_one(run_of_eight, tmp_path):
    assert runs.run(tmp_path, **RUN) == 0
    for one, eight in zip(runs.records(tmp_path), runs.records(run_of_eight), strict=True):
        assert one.keys() == eight.keys()
        for key in one.keys() - set(runs.TIMES):
            if any(part in key for part in ('_accuracy', 'macro_f1', 'mask_rate')):
                # Counts: an image on the edge may fall either way, which is more of its class than of all
                assert eight[key] == pytest.approx(one[key], abs=0.1 if 'per_class' in key else 0.01), key
            else:
                assert eight[key] == pytest.approx(one[key], rel=1e-4), key
    assert len({record['k_s'] for record in runs.records(run_of_eight)}) > 1
    runs.assert_diagnostics_close(tmp_path, run_of_eight, 4)


@inside
@pytest.mark.slow
@pytest.mark.as_for_users
def test_a_run_goes_on_with_images_on_the_host_to_the_same_bytes(run_of_eight, tmp_path):
    on_host = RUN | {'parallel__devices': 8, 'data__residency': 'host'}
    assert runs.run(tmp_path, **on_host | {'rounds': 2}) == 0
    assert runs.run(tmp_path, **on_host) == 0
    assert runs.lines(tmp_path) == runs.lines(run_of_eight)


@inside
@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'parallel__devices': 9, 'federation__num_active': 9}, 'parallel.devices=9'),
        (
            {'parallel__devices': 4, 'federation__num_active': 6, 'model__name': 'vgg13', 'model__split_index': 2}
            | {'data__name': 'cifar10', 'data__fake': True, 'data__fake_size': 200},
            'parallel.devices=4',
        ),
    ],
)
def test_devices_that_do_not_fit_are_refused(tmp_path, capsys, changes, named):
    assert runs.run(tmp_path / 'run', **changes) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


@inside
@pytest.mark.parametrize(('algorithm', 'devices'), [('semisfl', 3), ('supervised_only', 1), ('m_fed', 4)])
def test_all_devices_are_as_many_as_have_clients(algorithm, devices):
    """Of three; in dense tasks of four clients for each of two tasks."""
    changes = {'federation.num_active': 3, 'parallel.devices': 0} | needs.changes(algorithm)
    config = runs.config(**{key.replace('.', '__'): value for key, value in changes.items()})
    assert count_devices(config_lib.resolve(config)) == devices


@inside
@pytest.mark.slow
@pytest.mark.as_for_users
def test_trials_divided_over_devices_are_single_runs_to_the_byte(tmp_path):
    """A device computes whole trials, so nothing is summed in another order. K_s differs between the trials."""
    seeds, shared = (2, 0), {'data__residency': 'host'}
    for seed in seeds:
        assert runs.run(tmp_path / f'alone_{seed}', seed=seed, **shared) == 0
    together = tmp_path / 'together'
    assert runs.run(together, seeds=seeds, parallel__devices=2, **shared, rounds=2) == 0
    assert runs.run(together, seeds=seeds, parallel__devices=1, **shared) == 0  # goes on from round 2
    for seed in seeds:
        assert runs.lines(together / f'seed_{seed}') == runs.lines(tmp_path / f'alone_{seed}')
    assert len({tuple(r['k_s'] for r in runs.records(tmp_path / f'alone_{seed}')) for seed in seeds}) == 2


@inside
@pytest.mark.slow
def test_every_device_holds_its_own_trials(tmp_path):
    """States are divided, images are copied, and no device says a word to another."""
    configs = config_lib.trials(config_lib.resolve(runs.config(seeds=tuple(range(8)), parallel__devices=8)))
    driver = Driver(experiment.build_trials(configs), 'loop', 8)
    init = jax.jit(experiment.build(configs[0]).algorithm.init)
    state = driver.stack([init(rng.root(trial_config.seed)) for trial_config in configs])
    assert {len(shard.data) for shard in jax.tree.leaves(state.student)[0].addressable_shards} == {1}
    federation, cohorts, _ = next(driver.inputs(0))
    assert federation.server_images.sharding.is_fully_replicated
    assert len(federation.index.sharding.device_set) == 8
    arguments = driver.key, state, federation, cohorts, driver.stack([jnp.int32(2)] * 8)
    text = jax.jit(driver.round()).lower(*arguments).compile().as_text()
    for word in ('all-reduce', 'all-gather', 'collective-permute', 'all-to-all'):
        assert word not in text
