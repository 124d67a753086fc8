"""SplitFed's keys. Its rounds are held against NumPy in tests/test_phases.py."""

import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax.config.resolve import count_devices
from tests import runs
from tests.rows import STUDENT, Row

ROW = Row(STUDENT, STUDENT, unlabeled=False, by_images=True)


@pytest.mark.slow
@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_the_command_learns_and_reads_the_same_from_the_host(tmp_path, version):
    changes = {'algorithm': 'splitfed', 'data__client_labels': -1, 'k_s': 0, **runs.VIEWS}
    changes |= {'splitfed__version': version, 'k_u': 15, 'lr': 0.1}
    assert runs.run(tmp_path / 'device', **changes) == 0
    assert runs.run(tmp_path / 'host', **changes, data__residency='host') == 0
    assert runs.lines(tmp_path / 'device') == runs.lines(tmp_path / 'host')
    first, *_, last = runs.records(tmp_path / 'device')
    assert last['loss_local'] < first['loss_local']
    assert (last['loss_consistency'], last['loss_supervised'], last['k_s']) == (None, None, 0)
    images = last['images_per_second'] * last['wall_seconds']
    assert images == pytest.approx(3 * 15 * 4, abs=1)  # no batch of the server is among them


def test_v2_takes_one_device_of_those_there_are():
    changes = {'splitfed.version': 'v2', 'parallel.devices': 0, 'data.client_labels': -1, 'k_s': 0}
    config = sfl.get_config('cifar10', changes, algorithm='splitfed')
    assert count_devices(config_lib.resolve(config)) == 1
