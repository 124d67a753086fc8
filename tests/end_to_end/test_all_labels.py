"""The fully labeled upper bounds train on every image: none is set aside for a server that has no phase.

The digits have 1,437 training images. 140 of them would be the server's, which would leave 1,297; with K_s = 0 and all
labels at the clients, ten clients share all 1,437: 7 hold 144 and 3 hold 143.
"""

import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.core import sampling
from semisfl_jax.lab.plots import collect
from semisfl_jax.training import diagnostics, experiment, inputs
from tests.helpers import runs
from tests.helpers.marks import slow_but

ALL = {'data__num_labeled': 140, 'data__client_labels': -1, 'k_s': 0, 'federation__num_active': 10, 'rounds': 1}
ALL |= {'local__epochs': 1, 'augment__crop': 0.0, 'augment__operations': 0, 'augment__cutout': 0}
METHODS = {
    'fedavg': {'algorithm': 'fedavg', 'local__objective': 'supervised'},
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_everything_beside_the_training_knows_it(tmp_path, capsys):
    """Screen, files, diagnostics, the picture of the split."""
    settings = {**METHODS['fedavg'], **ALL, 'federation__partition': 'dirichlet', 'diagnostics_every': 1}
    assert runs.run(tmp_path, **settings) == 0
    assert 'no images at the server; 10 clients, ' in capsys.readouterr().out
    split = data.load_partition(tmp_path / 'partition.npz')
    assert (split.settings['num_labeled'], len(split.server_index)) == (0, 0)
    assert sum(map(len, split.client_index)) == collect.holdings(tmp_path).sum() == 1437
    assert diagnostics.load(tmp_path, 1)['unlabeled'].sum() == 1437
