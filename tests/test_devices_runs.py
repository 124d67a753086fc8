"""One device and eight: whole runs of the command, on devices that share clients or hold trials of their own."""

import signal

import jax
import jax.numpy as jnp
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core import rng
from semisfl_jax.training import experiment
from semisfl_jax.training.driver import Driver
from tests import eight_devices, runs


@pytest.mark.skipif(eight_devices.INSIDE, reason='is that process')
@pytest.mark.parametrize(('flags', 'marks'), eight_devices.PASSES)
def test_on_eight_devices(flags, marks):
    """Runs all other tests of this file."""
    eight_devices.run_tests(__file__, flags, marks)


RUN = {'federation__num_active': 8, 'rounds': 4, 'diagnostics_every': 4}


@pytest.fixture(scope='module')
def run_of_eight(tmp_path_factory):
    """A run on eight devices."""
    folder = tmp_path_factory.mktemp('eight') / 'run'
    assert runs.run(folder, **RUN, parallel__devices=0) == 0
    return folder


@eight_devices.inside
@pytest.mark.slow
def test_the_command_on_eight_devices_and_on_one(run_of_eight, tmp_path):
    assert runs.run(tmp_path, **RUN) == 0
    for one, eight in zip(runs.records(tmp_path), runs.records(run_of_eight), strict=True):
        assert one.keys() == eight.keys()
        for key in one.keys() - set(runs.TIMES):
            if key.endswith('_accuracy') or key == 'mask_rate':  # counts: an image on the edge may fall either way
                assert eight[key] == pytest.approx(one[key], abs=0.01), key
            else:
                assert eight[key] == pytest.approx(one[key], rel=1e-4), key
    assert len({record['k_s'] for record in runs.records(run_of_eight)}) > 1
    runs.assert_diagnostics_close(tmp_path, run_of_eight, 4)


@eight_devices.inside
@pytest.mark.slow
def test_clients_fail_alike_on_eight_devices_and_on_one(tmp_path):
    settings = RUN | {'failures__before': 0.2, 'failures__inside': 0.3}
    for devices in (1, 8):
        assert runs.run(tmp_path / str(devices), **settings, parallel__devices=devices) == 0
    lost = 0
    for one, eight in zip(runs.records(tmp_path / '1'), runs.records(tmp_path / '8'), strict=True):
        for key in ('clients', 'clients_failed', 'bytes_up', 'bytes_down', 'simulated_seconds'):
            assert one[key] == eight[key]
        for key in ('loss_supervised', 'loss_consistency', 'loss_clustering'):
            assert eight[key] == pytest.approx(one[key], rel=1e-4), key
        lost += one['clients_failed']
    assert lost > 0


@eight_devices.inside
@pytest.mark.slow
@pytest.mark.as_for_users
def test_images_on_the_host_give_the_same_bytes(run_of_eight, tmp_path):
    assert runs.run(tmp_path, **RUN, parallel__devices=8, data__residency='host') == 0
    assert runs.lines(tmp_path) == runs.lines(run_of_eight)


@eight_devices.inside
@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(run_of_eight, tmp_path):
    kill = """
import os, signal
from semisfl_jax.training import outputs
outputs.log_events = lambda events, record: record['round'] == 3 and os.kill(os.getpid(), signal.SIGKILL)"""
    killed = runs.run_process(tmp_path, kill, **RUN, parallel__devices=8)
    assert killed.returncode == -signal.SIGKILL
    assert 'device     cpu (cpu), 8 of them' in killed.stdout
    assert runs.run(tmp_path, **RUN, parallel__devices=8) == 0
    assert runs.lines(tmp_path) == runs.lines(run_of_eight)


@eight_devices.inside
@pytest.mark.slow
def test_a_run_stays_on_its_number_of_devices(run_of_eight, capsys):
    assert runs.run(run_of_eight, **RUN, parallel__devices=4) == 2
    assert 'parallel.devices: 0 -> 4' in capsys.readouterr().err


@eight_devices.inside
@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'parallel__devices': 9, 'federation__num_active': 9}, 'is more than the 8 available (cpu)'),
        (
            {'parallel__devices': 4, 'federation__num_active': 6, 'model__name': 'vgg13', 'model__split_index': 2}
            | {'data__name': 'cifar10', 'data__fake': True, 'data__fake_size': 200},
            'use a divisor, or another num_active',
        ),
    ],
)
def test_devices_that_do_not_fit_are_refused(tmp_path, capsys, changes, message):
    assert runs.run(tmp_path / 'run', **changes) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


@eight_devices.inside
@pytest.mark.parametrize(('algorithm', 'active', 'devices'), [('semisfl', 3, 3), ('supervised_only', 3, 1)])
def test_all_devices_are_as_many_as_have_clients(algorithm, active, devices):
    config = runs.config(algorithm=algorithm, federation__num_active=active, parallel__devices=0)
    assert count_devices(config_lib.resolve(config)) == devices


@eight_devices.inside
@pytest.mark.slow
@pytest.mark.as_for_users
@pytest.mark.parametrize(('residency', 'devices', 'later'), [('device', 2, 1), ('host', 0, 0)])
def test_trials_divided_over_devices_are_single_runs_to_the_byte(tmp_path, residency, devices, later):
    """A device computes whole trials, so nothing is summed in another order. K_s differs between the trials."""
    seeds, shared = (2, 0), {'data__residency': residency}
    for seed in seeds:
        assert runs.run(tmp_path / f'alone_{seed}', seed=seed, **shared) == 0
    together = tmp_path / 'together'
    assert runs.run(together, seeds=seeds, parallel__devices=devices, **shared, rounds=2) == 0
    assert runs.run(together, seeds=seeds, parallel__devices=later, **shared) == 0  # goes on from round 2
    for seed in seeds:
        assert runs.lines(together / f'seed_{seed}') == runs.lines(tmp_path / f'alone_{seed}')
    assert len({tuple(r['k_s'] for r in runs.records(tmp_path / f'alone_{seed}')) for seed in seeds}) == 2


@eight_devices.inside
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
    text = jax.jit(driver.round).lower(*arguments).compile().as_text()
    for word in ('all-reduce', 'all-gather', 'collective-permute', 'all-to-all'):
        assert word not in text
