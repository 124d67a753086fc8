"""`parallel.devices=0`: as many as can share the work of a run, on whatever machine, and no part of the experiment."""

import json

import pytest

from semisfl_jax import config as config_lib
from tests import runs

FEDAVG = {'algorithm': 'fedavg', 'local.objective': 'supervised', 'data.client_labels': -1, 'k_s': 0}
FEDAVG |= {'federation.num_active': 2, 'rounds': 2, 'lr_rounds': 2, 'checkpoint_every': 1, 'parallel.devices': 0}
CHANGES = {key.replace('.', '__'): value for key, value in FEDAVG.items()}
ON_ONE_CORE = 'import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])'


def summary(folder):
    return json.loads((folder / 'summary.json').read_text())


def test_what_a_user_asks_for_is_part_of_the_experiment():
    configs = [runs.config(**CHANGES | {'parallel__devices': devices}) for devices in (0, 1, 2)]
    resolved = [config_lib.resolve(config) for config in configs]
    assert [each.parallel.devices for each in resolved] == [0, 1, 2]
    assert len({config_lib.identity_hash(each) for each in resolved}) == 3
    assert config_lib.resolve(resolved[0]).to_dict() == resolved[0].to_dict()


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp('whole')
    result = runs.run_process(folder, **CHANGES)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_bytes_of_one_without_interruption(tmp_path, whole):
    assert runs.run_process(tmp_path, **CHANGES | {'rounds': 1}).returncode == 0
    result = runs.run_process(tmp_path, **CHANGES)
    assert result.returncode == 0, result.stderr
    assert runs.lines(tmp_path) == runs.lines(whole)
    assert summary(tmp_path)['devices'] == summary(whole)['devices']


@pytest.mark.slow
def test_a_run_goes_on_with_the_cores_of_another_machine(tmp_path, whole):
    """With two cores, as far as there are two, then with one."""
    assert runs.run_process(tmp_path, **CHANGES | {'rounds': 1}).returncode == 0
    result = runs.run_process(tmp_path, prelude=ON_ONE_CORE, **CHANGES)
    assert result.returncode == 0, result.stderr
    assert summary(tmp_path)['devices'] == 1
    assert summary(tmp_path)['config_hash'] == summary(whole)['config_hash']
    assert json.loads((tmp_path / 'config.json').read_text())['parallel']['devices'] == 0
