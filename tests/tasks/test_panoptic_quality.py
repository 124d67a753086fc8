"""Panoptic quality on pictures made by hand: what matches, what is void, what is a crowd."""

import numpy as np
import pytest

from semisfl_jax.tasks.panoptic_quality import Segment, count, quality

TRUTH = np.repeat([[1] * 4 + [2] * 4 + [0] * 2], 5, axis=0)  # two segments of 20 pixels, and 10 of void
OF_TRUTH = {1: Segment(7), 2: Segment(8)}


def counted(predicted, of_predicted, of_truth=OF_TRUTH):
    return {label: row.tolist() for label, row in count(predicted, of_predicted, TRUTH, of_truth).items()}


def test_the_truth_has_quality_1():
    assert counted(TRUTH, OF_TRUTH) == {7: [1, 1, 0, 0], 8: [1, 1, 0, 0]}
    assert quality([count(TRUTH, OF_TRUTH, TRUTH, OF_TRUTH)] * 3, (7, 8, 9)) == (1, 1, 1, 2)


def test_segments_match_above_one_half():
    """15 of 20 pixels and nothing else: 0.75. 10 of 20: 0.5, which is missed and wrong. Another class: likewise."""
    predicted = TRUTH * 1
    predicted[:, 0] = predicted[:, 4:6] = 0
    predicted[TRUTH == 0] = 0
    assert counted(predicted, OF_TRUTH) == {7: [0.75, 1, 0, 0], 8: [0, 0, 1, 1]}
    assert counted(predicted, {1: Segment(8), 2: Segment(7)}) == {7: [0, 0, 1, 1], 8: [0, 0, 1, 1]}
    pq = quality([count(predicted, OF_TRUTH, TRUTH, OF_TRUTH)], (7, 8))
    assert pq == (0.375, 0.375, 0.5, 2)


def test_pixels_without_truth_do_not_count():
    """Segment 2 also covers all of void; 3 lies there by more than half, 4 by half."""
    predicted = np.where(TRUTH == 0, 2, TRUTH)
    assert counted(predicted, OF_TRUTH)[8] == [1, 1, 0, 0]
    predicted = TRUTH * 1
    predicted[:3, 7:10] = 3  # 6 of 9 pixels
    assert counted(predicted, {**OF_TRUTH, 3: Segment(7)}) == {7: [1, 1, 0, 0], 8: [17 / 20, 1, 0, 0]}
    predicted = TRUTH * 1
    predicted[:, 7:9] = 3  # 5 of 10
    assert counted(predicted, {**OF_TRUTH, 3: Segment(7)}) == {7: [1, 1, 1, 0], 8: [15 / 20, 1, 0, 0]}


@pytest.mark.parametrize(('label', 'wrong'), [(8, 0), (7, 1)])
def test_nothing_is_missed_or_wrong_on_a_crowd_of_its_class(label, wrong):
    predicted = np.where((TRUTH == 2) & (np.arange(10) < 7), 5, TRUTH * (TRUTH == 1))
    counts = counted(predicted, {1: Segment(7), 5: Segment(label)}, {1: Segment(7), 2: Segment(8, crowd=True)})
    assert counts == {7: [1, 1, wrong, 0]}


def test_no_segments_have_no_quality():
    assert quality([], (1, 2)).classes == 0
    assert np.isnan(quality([], (1, 2)).pq)
    assert counted(0 * TRUTH, {}) == {7: [0, 0, 0, 1], 8: [0, 0, 0, 1]}
