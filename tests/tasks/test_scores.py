"""Scores of dense tasks: hand-made 4x4 maps, batches against the whole set, keypoints against scikit-learn's curve and
a loop, and predictions resized to the original size of the truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

from semisfl_jax import tasks
from semisfl_jax.data import maps
from semisfl_jax.tasks import IGNORED, scores
from semisfl_jax.training import evaluation
from tests.helpers import dense_twin

OUTPUTS = {'semseg': 4, 'saliency': 1, 'edges': 1, 'depth': 1, 'keypoints': 2}
VOID = IGNORED


def logit(probability):
    """Logits [..., 1] of probabilities."""
    p = np.asarray(probability, np.float64)[..., None]
    return np.log(p / (1 - p)).astype(np.float32)


def score(task, outputs, targets, valid=None):
    """Of one batch."""
    outputs, targets = np.asarray(outputs, np.float32), np.asarray(targets, np.uint8)
    valid = np.ones(len(targets), bool) if valid is None else valid
    counts = jax.jit(task.scorer.count)(outputs, targets, valid)
    return task.scorer.finish(jax.tree.map(lambda x: np.asarray(x)[None], counts))


def example(name, count=7, side=12):
    """Outputs and targets of some quality, a tenth of them without truth."""
    rng = np.random.default_rng(3)
    shape = count, side, side
    highest = {'semseg': 3, 'saliency': 1, 'edges': 1, 'depth': 254, 'keypoints': 2}[name]
    targets = rng.integers(0, highest + 1, shape)
    if name == 'keypoints':
        targets *= rng.uniform(size=shape) < 0.04
    outputs = rng.normal(size=(*shape, OUTPUTS[name]))
    if name == 'semseg':
        outputs += 1.5 * np.eye(4)[targets]
    elif name == 'keypoints':
        outputs += 2 * (targets[..., None] == [1, 2])
    elif name == 'depth':
        outputs = targets[..., None] / 254 + 0.1 * outputs
    else:
        outputs += 2 * targets[..., None] - 1
    void = rng.uniform(size=shape) < 0.1
    return outputs.astype(np.float32), np.where(void, VOID, targets).astype(np.uint8)


def test_miou_by_hand():
    """Classes 0 to 2 of four: 5 of 8, 3 of 5 and 3 of 4 pixels of the unions; nobody says 3. 11 of 14 are right."""
    truth = [[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 2], [2, 2, VOID, VOID]]
    guess = [[0, 0, 0, 0], [0, 1, 2, 1], [1, 1, 0, 2], [2, 2, 3, 0]]
    # 0: true 7, predicted 6, both 5. 1: true 4, predicted 4, both 3. 2: true 3, predicted 4, both 3.
    result = score(tasks.make('semseg', 4), np.eye(4)[[guess]], [truth])
    assert result == {'miou': pytest.approx((5 / 8 + 3 / 5 + 3 / 4) / 3), 'pixelaccuracy': pytest.approx(11 / 14)}


def test_saliency_by_hand():
    """Three images, whose mean IoUs are 1/2 below 0.3, 5/6 up to 0.4, 1/2 up to 0.52 and 2/3 above it."""
    truth, guess = np.zeros((3, 4, 4), np.uint8), np.full((3, 4, 4), 0.1)
    truth[0, 0], guess[0, 0], guess[0, 1] = 1, 0.95, 0.52  # 4 of 8 pixels below 0.52, then 4 of 4
    guess[1] = 0.31  # nothing is there: 0 below 0.31, then 1
    truth[2, :2], guess[2, :2] = 1, 0.41  # 8 of 8 below 0.41, then 0 of 8
    assert score(tasks.make('saliency', 1), logit(guess), truth) == {'iou': pytest.approx((1 / 2 + 1 + 1) / 3)}


@pytest.mark.parametrize('known', [0, 1])
def test_saliency_of_one_kind_of_pixels_has_no_score(known):
    """Whatever is predicted: masks of 0 and 255 have no foreground that is known, and nothing predicted would be 1."""
    truth = np.where(np.arange(16).reshape(1, 4, 4) < 4, VOID, known)
    for probability in (0.1, 0.95):
        assert np.isnan(score(tasks.make('saliency', 1), logit(np.full((1, 4, 4), probability)), truth)['iou'])


def test_saliency_leaves_out_pixels_and_images_without_truth():
    truth, guess = np.zeros((2, 4, 4), np.uint8), np.full((2, 4, 4), 0.1)
    truth[0, 0], guess[0, 0], guess[0, 1] = 1, 0.95, 0.95
    truth[0, 1, :2] = VOID  # 4 of 6 pixels
    truth[1] = VOID
    assert score(tasks.make('saliency', 1), logit(guess), truth) == {'iou': pytest.approx(4 / 6)}


def test_rmse_by_hand():
    """Errors of 0.5 at two pixels and 0.1 at one, 13 pixels of which are known: sqrt((0.5 + 0.01) / 13)."""
    targets = np.full((1, 4, 4), 127, np.uint8)
    outputs = np.full((1, 4, 4, 1), 0.5)
    targets[0, 0] = [0, 254, 127, VOID]
    targets[0, 1, :2] = VOID
    outputs[0, 0, :, 0] = [0.5, 0.5, 0.6, 9]
    assert score(tasks.make('depth', 1), outputs, targets) == {'rmse': pytest.approx((0.51 / 13) ** 0.5)}


@pytest.mark.parametrize('name', list(OUTPUTS))
def test_batches_equal_the_whole_set(name):
    """Seven images as four batches of two, with padding that would change the score if it counted."""
    task = tasks.make(name, OUTPUTS[name])
    outputs, targets = example(name)
    expected = score(task, outputs, targets)
    assert np.isfinite(list(expected.values())).all()
    assert task.score.name in expected
    padding = -outputs[:1] if name == 'depth' else np.ones_like(outputs[:1])
    filled = np.concatenate([outputs, padding]), np.concatenate([targets, targets[:1]]), np.arange(8) < 7
    count = jax.jit(task.scorer.count)
    batches = [count(*(rows[i : i + 2] for rows in filled)) for i in range(0, 8, 2)]
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *batches)
    assert task.scorer.finish(stacked) == pytest.approx(expected, rel=1e-6)
    assert score(task, filled[0], filled[1]) != pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('name', list(OUTPUTS))
def test_without_truth_there_is_no_score(name):
    task = tasks.make(name, OUTPUTS[name])
    outputs, targets = example(name)
    assert np.isnan(list(score(task, outputs, np.full_like(targets, VOID)).values())).all()
    assert np.isnan(list(score(task, outputs, targets, np.zeros(7, bool)).values())).all()


# --- keypoints


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
    result = score(tasks.make('keypoints', 3), outputs, targets)['ap']
    np.testing.assert_allclose(result, np.mean(aps), rtol=1e-6)
    assert 0.1 < result < 0.95


def test_points_beyond_the_peaks_are_still_missed():
    """30 points of which 20 peaks are right: recall 2/3 at precision 1. Types that never occur are left out."""
    outputs, targets = np.full((1, 40, 40, 2), -9.0), np.full((1, 40, 40), IGNORED)
    for i in range(30):
        at = 4 + 6 * (i // 6), 4 + 6 * (i % 6)
        outputs[(0, *at, 0)], targets[0, at[0], at[1]] = 1 + i, 1
    np.testing.assert_allclose(score(tasks.make('keypoints', 2), outputs, targets)['ap'], 20 / 30)


# --- at the original size of the truth

SIZES = np.array([[7, 11], [12, 5], [3, 4], [12, 11]], np.int32)
LARGEST = 12, 11
SIDE = 6  # of the network's outputs


def linear(values, height, width):
    return dense_twin.resize(values[None, :, :, None], height, width)[0, ..., 0]


def iou(truth, guess, k):
    return np.sum((truth == k) & (guess == k)) / np.sum((truth == k) | (guess == k))


def scores_at(name, outputs, truth, sizes, number=1):
    """Those of the whole evaluation, in batches of 3, of a network whose outputs are its images."""
    task = tasks.make(name, number)

    def predict(state, images):
        return {name: jnp.take(state, images[:, 0, 0, 0], axis=0)}

    rows = np.arange(len(outputs), dtype=np.uint8).reshape(-1, 1, 1, 1)
    inputs = evaluation.batched(rows, {name: truth}, 3, jax.device_put, sizes)
    state = jnp.asarray(outputs, jnp.float32)
    return evaluation.compile_evaluate(predict, state, inputs, lambda _: task)(inputs, state)[name]


def pictures(highest, seed=0):
    """A truth for each of SIZES, in patches of some pixels."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, highest + 1, (len(SIZES), 4, 3)).astype(np.uint8)
    return [maps.nearest(values, *size) for values, size in zip(coarse, SIZES.tolist(), strict=True)]


def test_bilinear_equals_loops():
    values = np.random.default_rng(1).normal(size=(4, SIDE, SIDE, 2)).astype(np.float32)
    resized = np.asarray(jax.jit(scores.bilinear, static_argnums=1)(values, LARGEST, SIZES))
    for got, given, (height, width) in zip(resized, values, SIZES.tolist(), strict=True):
        for channel in range(2):
            expected = linear(given[..., channel].astype(np.float64), height, width)
            np.testing.assert_allclose(got[:height, :width, channel], expected, atol=1e-5)


def test_classes_of_a_known_size_error():
    """The prediction is the truth, resized to the network's size: all that is wrong is what the two resizings lose."""
    truths = pictures(3)
    small = [maps.nearest(truth, SIDE, SIDE) for truth in truths]
    outputs = np.eye(4)[np.stack(small)]
    got = scores_at('semseg', outputs, maps.padded(truths, LARGEST), SIZES, number=4)
    back = [values[(2 * np.arange(h) + 1)[:, None] * SIDE // (2 * h), (2 * np.arange(w) + 1) * SIDE // (2 * w)]
            for values, (h, w) in zip(small, SIZES.tolist(), strict=True)]  # fmt: skip
    truth, guess = (np.concatenate([values.ravel() for values in of]) for of in (truths, back))
    assert got['miou'] == pytest.approx(np.mean([iou(truth, guess, k) for k in range(4)]))
    assert got['pixelaccuracy'] == pytest.approx(np.mean(truth == guess))
    assert 0.6 < got['miou'] < 0.99
    at_the_networks_size = scores_at('semseg', outputs, np.stack(small), None, number=4)
    assert at_the_networks_size == {'miou': 1.0, 'pixelaccuracy': 1.0}


def test_saliency_of_a_known_size_error():
    """Probabilities are resized, not logits: between 0.9 and 0.001, 0.45 is in the middle, with logits 0.09."""
    truths = pictures(1)
    small = np.stack([maps.nearest(truth, SIDE, SIDE) for truth in truths])
    probability = np.where(small == 1, 0.9, 0.001)
    outputs = np.log(probability / (1 - probability))[..., None]
    expected = []
    for threshold in np.linspace(0.2, 0.9, 15)[:-1]:  # the last one is at the probability itself
        large = [linear(p, *truth.shape) for p, truth in zip(probability, truths, strict=True)]
        expected.append(np.mean([iou(truth, p > threshold, 1) for truth, p in zip(truths, large, strict=True)]))
    got = scores_at('saliency', outputs, maps.padded(truths, LARGEST), SIZES)['iou']
    assert got == pytest.approx(max(expected), abs=1e-6)
    assert 0.6 < got < 0.99
    assert scores_at('saliency', outputs, small, None)['iou'] == 1


def test_depth_at_the_original_size():
    truths = [values * 80 for values in pictures(3)]
    outputs = np.random.default_rng(3).uniform(size=(4, SIDE, SIDE, 1)).astype(np.float32)
    large = [linear(values[..., 0], *truth.shape) for values, truth in zip(outputs, truths, strict=True)]
    squares = [((a - b / 254) ** 2).ravel() for a, b in zip(large, truths, strict=True)]
    got = scores_at('depth', outputs, maps.padded(truths, LARGEST), SIZES)['rmse']
    assert got == pytest.approx(np.concatenate(squares).mean() ** 0.5, rel=1e-5)


def test_edges_at_the_original_size():
    """A line of the network's, two pixels wide at twice its size, is thinned to the one beside the true line or to it.
    Images of 96 x 96 in maps of 192 x 192, whose tolerance would be two pixels: a line three pixels off is wrong."""
    truth = np.full((2, 192, 192), IGNORED, np.uint8)
    truth[:, :96, :96] = 0
    truth[0, 20:60, 40], truth[1, 20:60, 43] = 1, 1
    outputs = np.full((2, 48, 48, 1), -9.0)
    outputs[:, 10:30, 20] = 9  # rows 20 to 59 and columns 40 and 41
    sizes = np.full((2, 2), 96, np.int32)
    assert scores_at('edges', outputs[:1], truth[:1], sizes[:1])['odsf'] > 0.95
    assert scores_at('edges', outputs[1:], truth[1:], sizes[1:])['odsf'] == 0
    assert scores_at('edges', outputs[1:], truth[1:], 2 * sizes[1:])['odsf'] == 0  # predicted at rows 40 to 119


def test_keypoints_at_the_original_size():
    """Within 0.05 of the longer side, which is 2 pixels of 40, not of the map's 80."""
    truth = np.full((1, 80, 80), IGNORED, np.uint8)
    truth[0, :40, :30] = 0
    truth[0, 20, 15] = 1
    for column, found in ((15, 1), (13, 1), (12, 0)):
        outputs = np.zeros((1, 40, 30, 1))
        outputs[0, 20, column] = 5
        assert scores_at('keypoints', outputs, truth, np.array([[40, 30]], np.int32))['ap'] == found, column
