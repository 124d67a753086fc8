"""What JPEG costs: the pairs of images, the runs that are compared, and the table."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import jpeg
from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.data import dataset

ROWS = {'train': np.array([4, 0, 3]), 'test': np.array([1, 2])}


@pytest.fixture
def originals(monkeypatch, tmp_path):
    """Five and three JPEGs, of which image n is n everywhere, and a file with originals of some, which are n + 100."""
    images, labels = np.arange(5, dtype=np.uint8), np.arange(5, dtype=np.int32) % 2
    jpegs = {}
    for split, number in {'train': 5, 'test': 3}.items():
        jpegs[f'{split}_images'] = np.broadcast_to(images[:number, None, None, None], (number, 32, 32, 3)).copy()
        jpegs[f'{split}_labels'] = labels[:number]
    monkeypatch.setattr(data, 'load', lambda options: dataset.make(options.name, jpegs, num_classes=10))
    arrays = {}
    for split, rows in ROWS.items():
        arrays[f'{split}_index'], arrays[f'{split}_labels'] = rows, labels[rows]
        arrays[f'{split}_original'] = jpegs[f'{split}_images'][rows] + np.uint8(100)

    def save(**changes):
        np.savez(tmp_path / 'originals.npz', **arrays | changes)
        return str(tmp_path / 'originals.npz')

    return save


def test_both_data_sets_are_of_the_same_images(originals):
    for images, more in {'original': 100, 'jpeg': 0}.items():
        found = jpeg.read(originals(), images)
        assert found.train_images[:, 0, 0, 0].tolist() == [4 + more, 0 + more, 3 + more]
        assert found.test_images[:, 0, 0, 0].tolist() == [1 + more, 2 + more]
        assert (found.train_labels.tolist(), found.test_labels.tolist()) == ([0, 0, 1], [1, 0])


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'train_labels': np.array([0, 1, 1])}, '1 of the train_labels'),
        ({'test_index': np.array([1, 7])}, 'cannot be used'),
        ({'test_original': np.zeros((2, 32, 32), np.uint8)}, 'test_images'),
    ],
)
def test_a_file_that_does_not_fit(originals, changes, message):
    with pytest.raises(UserError, match=message):
        jpeg.read(originals(**changes), 'original')


@pytest.mark.parametrize('row', jpeg.ROWS)
def test_the_runs_of_a_row_have_the_settings_that_they_are_asked_for(row):
    config = jpeg.configuration(row, seeds=3, rounds=20)
    assert (list(config.seeds), config.rounds, config.eval_every) == ([0, 1, 2], 20, 5)
    config_lib.check(config)


def test_the_table_is_of_pairs():
    """Differences 1, 2 and 3; a row with one run is left out."""
    originals, jpegs = {0: 50.0, 1: 52.0, 2: 54.0}, {0: 49.0, 1: 50.0, 2: 51.0}
    lines = jpeg.table({('few', 'original'): originals, ('few', 'jpeg'): jpegs, ('all', 'jpeg'): jpegs}).splitlines()
    half = stats.t.ppf(0.975, 2) / 3**0.5
    assert lines[2:] == [
        f'| the server alone, 1,000 labels | 52.00 | 50.00 | +2.00 [{2 - half:+.2f}, {2 + half:+.2f}] | 3 |'
    ]
