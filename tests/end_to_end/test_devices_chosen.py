"""A CPU is as many devices as a run asks for, and with 0 as many as pay; each case in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.lab.studies import plan, spec
from tests.helpers import runs

SCRIPT = """
import json, sys
import jax
from semisfl_jax import config as config_lib
from semisfl_jax.config.resolve import count_devices as count
from semisfl_jax.base.errors import UserError
from semisfl_jax.base import machine
from semisfl_jax.core.clients import make_mesh
from tests.helpers import runs

cores, begun, *all_changes = json.loads(sys.argv[1])
machine.cores = lambda: cores
if begun:
    jax.devices()
for changes in all_changes:
    config = config_lib.resolve(runs.config(**changes))
    devices = count(config)
try:
    make_mesh(devices)
    assert count(config) == devices
    print(devices, jax.device_count())
except UserError as error:
    print(error)
"""
FLAG = '--xla_force_host_platform_device_count'
WHOLE, CUT = {'algorithm': 'semifl', 'parallel__devices': 0}, {'algorithm': 'semisfl', 'parallel__devices': 0}


@pytest.mark.parametrize(
    ('cores', 'begun', 'changes', 'environment', 'expected'),
    [
        pytest.param(2, False, [WHOLE], {}, '2 2', marks=pytest.mark.slow),
        (8, False, [WHOLE, CUT], {}, '1 3'),  # as many as active clients; the same after another run
        pytest.param(3, False, [CUT | {'seeds': (0, 1, 2, 3)}], {}, '2 3', marks=pytest.mark.slow),  # divides trials
        pytest.param(1, False, [CUT | {'parallel__devices': 3}], {}, '3 3', marks=pytest.mark.slow),
        pytest.param(8, False, [CUT], {'XLA_FLAGS': f'{FLAG}=2'}, '2 2', marks=pytest.mark.slow),  # as the user says
        pytest.param(8, False, [WHOLE], {'JAX_NUM_CPU_DEVICES': '2'}, '2 2', marks=pytest.mark.slow),
        pytest.param(
            8, True, [CUT | {'parallel__devices': 3}], {}, 'config.parallel.devices=3 ', marks=pytest.mark.slow
        ),
    ],
)
def test_a_cpu_is_as_many_devices_as_pay(cores, begun, changes, environment, expected):
    names = os.environ.keys() - {'XLA_FLAGS', 'JAX_NUM_CPU_DEVICES'}
    result = subprocess.run(
        [sys.executable, '-c', SCRIPT, json.dumps([cores, begun, *changes])],
        cwd=runs.ROOT,
        env={name: os.environ[name] for name in names} | {'JAX_PLATFORMS': 'cpu'} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip().startswith(expected)


def test_devices_identify_a_run_of_one_seed_but_none_of_several():
    def of(**changes):
        return config_lib.resolve(runs.config(**changes))

    all_, one, two = (of(parallel__devices=devices) for devices in (0, 1, 2))
    assert all_.parallel.devices == 0
    assert len({config_lib.identity_hash(each) for each in (all_, one, two)}) == 3
    assert config_lib.differences(two, one) == []  # it may go on
    one, two = of(seeds=(0, 1), parallel__devices=1), of(seeds=(0, 1), parallel__devices=2)
    assert config_lib.identity_hash(one) == config_lib.identity_hash(two)
    assert config_lib.differences(two, one) == []


def test_runs_of_a_study_take_all_devices_for_several_seeds():
    unchanged = runs.config()
    several = plan.job(spec.cell('row', 'column', 'digits', runs.config(), unchanged), (0, 1))
    assert several.changes['parallel.devices'] == 0
    assert '--config.parallel.devices=0' in several.command()
    alone = plan.job(spec.cell('row', 'column', 'digits', runs.config(), unchanged), (0,))
    assert 'parallel.devices' not in alone.changes
    asked = plan.job(spec.cell('row', 'column', 'digits', runs.config(parallel__devices=2), unchanged), (0, 1))
    assert asked.changes['parallel.devices'] == 2
    assert asked.name == several.name != alone.name


@pytest.mark.slow
def test_a_run_goes_on_with_the_cores_of_another_machine(tmp_path):
    """With two cores, as far as there are two, then with one."""
    changes = {'algorithm': 'fedavg', 'local__objective': 'supervised', 'data__client_labels': -1, 'k_s': 0}
    changes |= {'federation__num_active': 2, 'lr_rounds': 2, 'checkpoint_every': 1, 'parallel__devices': 0}
    found = []
    for rounds, prelude in ((1, ''), (2, 'import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])')):
        result = runs.run_process(tmp_path, prelude=prelude, rounds=rounds, **changes)
        assert result.returncode == 0, result.stderr
        found.append(json.loads((tmp_path / 'summary.json').read_text()))
    assert found[1]['devices'] == 1
    assert found[0]['config_hash'] == found[1]['config_hash']
    assert json.loads((tmp_path / 'config.json').read_text())['parallel']['devices'] == 0
