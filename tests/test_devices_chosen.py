"""`parallel.devices=0`: the machine chooses their number, a run keeps it, and it is no part of the experiment."""

import json

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import parallel
from tests import runs

FEDAVG = {'algorithm': 'fedavg', 'local.objective': 'supervised', 'data.client_labels': -1, 'k_s': 0}
FEDAVG |= {'federation.num_active': 2, 'rounds': 2, 'lr_rounds': 2, 'checkpoint_every': 1, 'parallel.devices': 0}
ON_ONE_CORE = 'import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])'


def config_of(devices=0):
    return runs.config(
        **{key.replace('.', '__'): value for key, value in (FEDAVG | {'parallel.devices': devices}).items()}
    )


@pytest.fixture
def whole(monkeypatch):
    """This process keeps the devices that it has."""
    monkeypatch.setattr(parallel.cpu, 'split', lambda devices: None)


def test_the_same_command_is_the_same_experiment_on_any_number_of_cores(whole):
    config = config_of()
    resolved = [
        config_lib.resolve(config, {'parallel.devices': devices, 'machine_keys': ['parallel.devices']})
        for devices in (1, 2)
    ]
    assert [each.parallel.devices for each in resolved] == [1, 2]
    assert len({config_lib.identity_hash(each) for each in resolved}) == 1
    assert config_lib.default_workdir(config, 'x') == f'runs/x-{config_lib.identity_hash(resolved[0])[:8]}'
    given = [config_lib.identity_hash(config_lib.resolve(config_of(devices))) for devices in (1, 2)]
    assert len({*given, config_lib.identity_hash(resolved[0])}) == 3  # what a user asks for is part of it


@pytest.mark.parametrize(
    ('asked', 'written', 'expected', 'by_machine'),
    [
        (0, {'parallel.devices': 2, 'machine_keys': ['parallel.devices']}, 2, True),
        (0, {'parallel.devices': 2, 'machine_keys': []}, 2, False),  # asked for, or by an earlier version
        (2, {'parallel.devices': 2, 'machine_keys': ['parallel.devices']}, 2, True),
        (1, {'parallel.devices': 2, 'machine_keys': ['parallel.devices']}, 1, False),  # refused later
        (0, {'parallel.devices': 'many', 'machine_keys': 7}, 1, True),  # this process has one
        (1, None, 1, False),
    ],
)
def test_a_run_keeps_its_number(whole, asked, written, expected, by_machine):
    resolved = config_lib.resolve(config_of(asked), written)
    assert resolved.parallel.devices == expected
    assert ('parallel.devices' in resolved.machine_keys) == by_machine
    config_lib.check(resolved)
    assert config_lib.resolve(resolved).to_dict() == resolved.to_dict()


@pytest.mark.slow
def test_a_run_that_goes_on_with_another_number_of_cores(tmp_path):
    """With two cores, as far as there are two, then with one: the bytes are those of a run without interruption."""
    changes = {key.replace('.', '__'): value for key, value in FEDAVG.items()}
    assert runs.run_process(tmp_path / 'whole', **changes).returncode == 0
    assert runs.run_process(tmp_path / 'parted', **changes | {'rounds': 1}).returncode == 0
    result = runs.run_process(tmp_path / 'parted', prelude=ON_ONE_CORE, **changes)
    assert result.returncode == 0, result.stderr
    assert runs.lines(tmp_path / 'parted') == runs.lines(tmp_path / 'whole')
    configs = [json.loads((tmp_path / name / 'config.json').read_text()) for name in ('whole', 'parted')]
    assert len({config['parallel']['devices'] for config in configs}) == 1
    assert 'parallel.devices' in configs[0]['machine_keys']
