"""Counts and rates of diagnostics against sums by hand."""

import numpy as np
import pytest

from semisfl_jax.core.errors import UserError
from semisfl_jax.training import diagnostics


def test_labels_are_counted_by_group_truth_and_label():
    counts = diagnostics.count_labels(
        groups=np.array([0, 0, 0, 1, 1, 1]),
        truth=np.array([0, 0, 1, 1, -1, 1]),
        labels=np.array([0, 1, 1, 0, 1, 0]),
        counted=np.array([True, True, True, True, True, False]),
        size=2,
        classes=2,
    )
    assert counts.tolist() == [[[1, 1], [0, 1], [0, 0]], [[0, 0], [1, 0], [0, 1]]]  # the last row: truth unknown


def test_slots_of_a_queue():
    counts, empty = diagnostics.count_slots(
        labels=np.array([1, -1, 0, 1, -1]),
        confident=np.array([True, True, False, False, False]),
        truth=np.array([1, 0, 1, -1, 0]),
        classes=2,
    )
    assert empty == 2
    assert counts.tolist() == [[[0, 0], [1, 0], [0, 1]], [[0, 0], [0, 1], [0, 0]]]


# Two clients, two classes and images of unknown class. Client 0: 4 images of class 0, of which 2 are labeled 0 and
# 1 is labeled 1; client 1: 3 of class 1, of which 1 is labeled 1, and 5 unknown, of which 4 are labeled 0.
CONFIDENT = np.array([[[2, 1], [0, 0], [0, 0]], [[0, 0], [0, 1], [4, 0]]])
UNLABELED = np.array([[4, 0, 0], [0, 3, 5]])


def test_rates_by_class_and_by_client():
    by_class = diagnostics.class_rates(CONFIDENT, UNLABELED)
    np.testing.assert_allclose(by_class.mask, [3 / 4, 1 / 3])
    np.testing.assert_allclose(by_class.accuracy, [2 / 3, 1])
    by_client = diagnostics.client_rates(CONFIDENT, UNLABELED)
    np.testing.assert_allclose(by_client.mask, [3 / 4, 5 / 8])
    np.testing.assert_allclose(by_client.accuracy, [2 / 3, 1])


def test_rates_of_nothing_are_not_a_number():
    by_class = diagnostics.class_rates(np.zeros((1, 3, 2), int), np.array([[2, 0, 0]]))
    np.testing.assert_array_equal(by_class.mask, [0, np.nan])
    np.testing.assert_array_equal(by_class.accuracy, [np.nan, np.nan])


def test_files_come_back_and_are_cut_back(tmp_path):
    for number in (5, 10, 15):
        diagnostics.save(tmp_path, number, {'round': np.int32(number), 'pieces': np.array(['bottom', 'top'])})
    assert sorted(path.name for path in (tmp_path / 'diagnostics').iterdir())[0] == 'round_000005.npz'
    assert diagnostics.load(str(tmp_path), 10)['round'] == 10  # a path as a string, too
    assert diagnostics.load(tmp_path, 10)['pieces'].tolist() == ['bottom', 'top']
    diagnostics.cut_back(tmp_path, 10)
    assert diagnostics.rounds_written(tmp_path) == [5, 10]
    assert diagnostics.rounds_written(tmp_path / 'nowhere') == []


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r'no diagnostics .*round_000003.npz; run with --config.diagnostics_every'):
        diagnostics.load(tmp_path, 3)
    diagnostics.save(tmp_path, 3, {'round': np.int32(3)})
    (tmp_path / 'diagnostics' / 'round_000003.npz').write_bytes(b'PK')
    with pytest.raises(UserError, match=r'round_000003.npz cannot be read'):
        diagnostics.load(tmp_path, 3)
