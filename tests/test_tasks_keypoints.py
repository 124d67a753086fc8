"""Average precision of keypoints against scikit-learn's precision-recall curve, and matching in a loop."""

import jax
import numpy as np
import pytest
import sklearn.metrics

from semisfl_jax import tasks
from semisfl_jax.tasks import IGNORED, scores


def count(outputs, targets):
    valid = np.ones(len(targets), bool)
    return jax.tree.map(
        np.asarray,
        jax.jit(tasks.make('keypoints', outputs.shape[-1]).scorer.count)(
            np.asarray(outputs, np.float32), np.asarray(targets, np.uint8), valid
        ),
    )


def score(outputs, targets):
    counts = jax.tree.map(lambda x: x[None], count(outputs, targets))
    return tasks.make('keypoints', outputs.shape[-1]).scorer.finish(counts)['ap']


def by_scikit_learn(height, right, points):
    """The interpolated curve: at every recall, the highest precision at this or a larger one."""
    if not right.any():
        return 0.0
    precision, recall, _ = sklearn.metrics.precision_recall_curve(right, height)  # recall falls, of what was found
    return -np.sum(np.diff(recall * right.sum() / points) * np.maximum.accumulate(precision)[:-1])


def test_average_precision_by_hand():
    """Right, wrong, right, of 3 points: recall 1/3 at precision 1, 2/3 at 2/3. Equal heights count together."""
    height, right = np.array([3.0, 2.0, 1.0]), np.array([True, False, True])
    np.testing.assert_allclose(scores.average_precision(height, right, 3), 1 / 3 * 1 + 1 / 3 * 2 / 3)
    height = np.array([1.0, 3.0, 3.0])  # right and wrong at once: 1/2, then 2/3 at recall 2/3, which holds before, too
    np.testing.assert_allclose(scores.average_precision(height, right[[2, 0, 1]], 3), 2 / 3 * 2 / 3)
    assert scores.average_precision(np.zeros(0), np.zeros(0, bool), 3) == 0


@pytest.mark.parametrize('levels', [1000, 5])
def test_average_precision_equals_scikit_learn(levels):
    rng = np.random.default_rng(levels)
    right = rng.uniform(size=60) < 0.4
    height = rng.integers(0, levels, 60) + levels // 2 * right
    result = scores.average_precision(height, right, 30)
    np.testing.assert_allclose(result, by_scikit_learn(height, right, 30))
    assert 0.2 < result < 0.9


def test_peaks_by_hand():
    """4x4, where 0.05 of the side is less than a pixel: of four peaks, two are on the two points.

    Two more pixels are beside a higher one, so they are not peaks, and the ground has no truth, so its plateau is not
    judged. Recall 1/2 at precision 1, and 1 at 2/4.
    """
    outputs, targets = np.full((1, 4, 4, 1), -9.0), np.full((1, 4, 4), IGNORED)
    outputs[0, [0, 1, 0, 3, 3, 2], [0, 1, 3, 0, 3, 3], 0] = [5, 4, 3, 2, 2.5, 2.4]
    targets[0, [1, 0, 3, 3, 2], [1, 3, 0, 3, 3]] = 0
    targets[0, 0, 0] = targets[0, 3, 0] = 1
    result = count(outputs, targets)
    np.testing.assert_array_equal(result.height[0, 0, :5], [5, 3, 2.5, 2, -np.inf])
    np.testing.assert_array_equal(result.right[0, 0, :5], [True, False, False, True, False])
    assert result.points.tolist() == [[2]]
    np.testing.assert_allclose(score(outputs, targets), 1 / 2 * 1 + 1 / 2 * 2 / 4)


def test_a_point_is_taken_once_by_the_highest_peak_and_the_nearest_point():
    """Side 60, so within 3 pixels. A at distance 1 and 3 of two points takes the first; B takes the other."""
    outputs, targets = np.full((1, 60, 60, 1), -9.0), np.full((1, 60, 60), IGNORED)
    targets[0, 10, 10] = targets[0, 10, 14] = 1
    for at, height in (((10, 11), 5.0), ((10, 13), 4.0), ((13, 10), 3.0), ((10, 18), 2.0)):
        outputs[(0, *at, 0)] = height
        targets[0, at[0], at[1]] = 0
    result = count(outputs, targets)
    np.testing.assert_array_equal(result.height[0, 0, :4], [5, 4, 3, 2])
    np.testing.assert_array_equal(result.right[0, 0, :4], [True, True, False, False])


def peaks(plane, known):
    """(height, row, column) of peaks, highest first, from a loop over pixels."""
    found = []
    for y, x in np.argwhere(known):
        around = plane[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
        if plane[y, x] == around.max():
            found.append((plane[y, x], y, x))
    return sorted(found, reverse=True)[: scores.PEAKS]


def test_matching_equals_a_loop():
    """Random maps of side 44: points within 2.2 pixels."""
    rng = np.random.default_rng(5)
    targets = rng.integers(1, 4, (3, 44, 30)) * (rng.uniform(size=(3, 44, 30)) < 0.02)
    outputs = rng.normal(size=(3, 44, 30, 3)) + 2 * (targets[..., None] == [1, 2, 3])
    outputs = outputs.astype(np.float32)
    targets[rng.uniform(size=targets.shape) < 0.05] = IGNORED
    aps = []
    for k in range(3):
        height, right, points = [], [], 0
        for i in range(3):
            free = [tuple(at) for at in np.argwhere(targets[i] == k + 1)]
            points += len(free)
            for h, y, x in peaks(outputs[i, ..., k], targets[i] != IGNORED):
                near = sorted((v - y) ** 2 + (u - x) ** 2 for v, u in free)
                hit = bool(near) and near[0] <= 2.2**2
                if hit:
                    free.remove(next(at for at in free if (at[0] - y) ** 2 + (at[1] - x) ** 2 == near[0]))
                height.append(h)
                right.append(hit)
        aps.append(by_scikit_learn(np.array(height), np.array(right), points))
    result = score(outputs, targets)
    np.testing.assert_allclose(result, np.mean(aps), rtol=1e-6)
    assert 0.1 < result < 0.95


def test_points_beyond_the_peaks_are_still_missed():
    """30 points of which 20 peaks are right: recall 2/3 at precision 1. Types that never occur are left out."""
    outputs, targets = np.full((1, 40, 40, 2), -9.0), np.full((1, 40, 40), IGNORED)
    for i in range(30):
        at = 4 + 6 * (i // 6), 4 + 6 * (i % 6)
        outputs[(0, *at, 0)], targets[0, at[0], at[1]] = 1 + i, 1
    np.testing.assert_allclose(score(outputs, targets), 20 / 30)
