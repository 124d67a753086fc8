"""SplitFed: rounds against NumPy, and its keys."""

import types

import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms.splitfed import SplitFed
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.core.hparams import Local
from semisfl_jax.costs import CostContext
from semisfl_jax.costs.prices import ModelSpec, measure, supervised_work
from tests.helpers import numpy_rounds, runs
from tests.helpers.linear_local import OneAfterAnother, Server
from tests.helpers.prices import model_of, price
from tests.helpers.rows import STUDENT, Row

ROWS = {'splitfed': Row(STUDENT, STUDENT, unlabeled=False, by_images=True)}
CASES = {
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


@pytest.mark.parametrize('case', CASES)
def test_rounds_equal_the_ones_in_numpy(case):
    numpy_rounds.check_whole(*CASES[case], OneAfterAnother if case == 'one top for all' else Server)


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


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_bytes_of_both_versions(version):
    """One bottom each way; features and labels up, a gradient down."""
    pieces = measure(ModelSpec('small_cnn', 10, (8, 8, 1), None, 'mlp', 128))
    h = types.SimpleNamespace(batch_size=16, options=types.SimpleNamespace(version=version))
    cost = price('splitfed', CostContext(pieces, pieces.whole_bytes, h, 5))
    bottom, features = 4 * (9 * 16 + 16 + 9 * 16 * 32 + 32), 4 * 16 * 2 * 2 * 32
    assert (cost.download, cost.upload) == (bottom, bottom)
    assert (cost.step_upload, cost.step_download) == (features + 4 * 16, features)
    assert cost.order == {'v1': 'synchronized', 'v2': 'sequential'}[version]
    h = model_of(runs.config(algorithm='splitfed', data__client_labels=-1, k_s=0)).hparams
    context = CostContext(pieces, pieces.whole_bytes, h, 5)
    assert supervised_work(context) == 0  # no labels at the server
