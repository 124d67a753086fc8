"""The fully labeled upper bounds train on every image: none is set aside for a server that has no phase.

The digits have 1,437 training images. 140 of them would be the server's, which would leave 1,297; with K_s = 0 and all
labels at the clients, ten clients share all 1,437: 7 hold 144 and 3 hold 143.
"""

import json

import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.core import sampling
from semisfl_jax.plots import collect
from semisfl_jax.training import diagnostics, experiment, inputs
from semisfl_jax.training.describe import describe
from semisfl_jax.training.driver import Driver
from tests import runs
from tests.marks import slow_but

ALL = {'data__num_labeled': 140, 'data__client_labels': -1, 'k_s': 0, 'federation__num_active': 10, 'rounds': 1}
ALL |= {'local__epochs': 1, 'augment__crop': 0.0, 'augment__operations': 0, 'augment__cutout': 0}
SUPERVISED = {'local__objective': 'supervised'}
METHODS = {
    'fedavg': {'algorithm': 'fedavg', **SUPERVISED},
    'fedprox': {'algorithm': 'fedprox', **SUPERVISED},
    'splitfed_v1': {'algorithm': 'splitfed'},
    'splitfed_v2': {'algorithm': 'splitfed', 'splitfed__version': 'v2'},
}


def images_read(built):
    """Rows of the training set that the first round reads, each of them with its label."""
    key, cohort, batches = built.key, next(inputs.cohorts(built, 0))[0], built.hparams.batches
    tables = built.federation.tables
    rows, labeled = sampling.rows(built.method.reads, key, tables, cohort, batches)
    made = np.arange(rows.shape[1]) < np.asarray(sampling.client_steps(tables, cohort, batches))[:, None]
    assert np.asarray(labeled)[made].all()
    return set(np.asarray(rows)[made].ravel().tolist())


@pytest.mark.parametrize('name', slow_but(METHODS, 'fedavg'))
def test_one_round_trains_on_all_images(tmp_path, name):
    config = runs.config(**METHODS[name], **ALL, data__residency='host')
    built = experiment.build(config_lib.resolve(config))
    assert images_read(built) == set(range(1437))
    assert sorted(inputs.participation(built, 0).images.tolist()) == 3 * [143] + 7 * [144]
    assert runs.run(tmp_path, **METHODS[name], **ALL) == 0
    (record,) = runs.records(tmp_path)
    # 143 and 144 images are 36 batches of 4 each
    assert record['images_per_second'] * record['wall_seconds'] == pytest.approx(10 * 36 * 4, rel=0.01)
    assert record['loss_local'] > 0


def test_a_server_that_trains_keeps_its_own():
    changes = ALL | {'k_s': 8}
    built = experiment.build(config_lib.resolve(runs.config(**METHODS['fedavg'], **changes, data__residency='host')))
    assert len(built.partition.server_index) == 140
    assert images_read(built) == set(range(1437)) - set(built.partition.server_index.tolist())


def test_everything_beside_the_training_knows_it(tmp_path, capsys):
    """Screen, files, diagnostics, the picture of the split."""
    folder = tmp_path / 'run'
    settings = {**METHODS['fedavg'], **ALL, 'federation__partition': 'dirichlet', 'diagnostics_every': 1}
    assert runs.run(folder, **settings) == 0
    split_line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith('split'))
    assert split_line.startswith('split      no images at the server; 10 clients, dirichlet(alpha=0.1), ')
    assert ' images each, all of them labeled, ' in split_line
    split = data.load_partition(folder / 'partition.npz')
    assert (split.settings['num_labeled'], len(split.server_index)) == (0, 0)
    assert sum(map(len, split.client_index)) == 1437
    assert collect.holdings(folder).sum() == 1437
    assert diagnostics.load(folder, 1)['unlabeled'].sum() == 1437
    assert json.loads((folder / 'summary.json').read_text())['rounds'] == 1
    assert runs.run(tmp_path / 'file', **settings, data__partition_file=folder / 'partition.npz') == 0
    assert runs.lines(tmp_path / 'file') == runs.lines(folder)


@pytest.mark.parametrize('residency', ['device', 'host'])
def test_trials_without_images_at_the_server_share_the_rest(residency):
    config = config_lib.resolve(runs.config(**METHODS['fedavg'], **ALL, seeds='0,1', data__residency=residency))
    built = experiment.build_trials(config_lib.trials(config))
    federation, *_ = next(Driver(built, 'loop').inputs(0))
    assert federation.server_index.shape == (2, 0)
    assert federation.size.sum(axis=1).tolist() == federation.labeled_size.sum(axis=1).tolist() == [1437, 1437]


def test_labels_at_clients_are_on_the_screen():
    config = runs.config(algorithm='fedavg', data__client_labels=20, federation__mu=1)
    built = experiment.build(config_lib.resolve(config))
    description = '\n'.join(describe([built]))
    assert ', 2 of them, which divide the seeds' in '\n'.join(describe([built, built], 2))
    assert 'of them' not in description
    assert ' 139 to 140 images each, 20 more with labels, 2 images each, 3 active in a round, ' in description
