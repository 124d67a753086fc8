"""Predictions are resized to the original size of the truth: by hand, by loops in NumPy, and through the evaluation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.data import maps
from semisfl_jax.tasks import IGNORED
from semisfl_jax.tasks.scores import bilinear, nearest
from semisfl_jax.training import evaluation as evaluate_lib

SIZES = np.array([[7, 11], [12, 5], [3, 4], [12, 11]], np.int32)
LARGEST = 12, 11
SIDE = 6  # of the network's outputs


def linear(values, height, width):
    """Bilinear interpolation [H, W] of [h, w], pixel by pixel, with half-pixel centers and repeated borders."""
    made = np.empty((height, width))
    for i, j in np.ndindex(height, width):
        y, x = (i + 0.5) * values.shape[0] / height - 0.5, (j + 0.5) * values.shape[1] / width - 0.5
        total = 0.0
        for row in (int(np.floor(y)), int(np.floor(y)) + 1):
            for column in (int(np.floor(x)), int(np.floor(x)) + 1):
                weight = (1 - abs(y - row)) * (1 - abs(x - column))
                total += weight * values[np.clip(row, 0, len(values) - 1), np.clip(column, 0, values.shape[1] - 1)]
        made[i, j] = total
    return made


def iou(truth, guess, k):
    return np.sum((truth == k) & (guess == k)) / np.sum((truth == k) | (guess == k))


def scores(name, outputs, truth, sizes, number=1):
    """Those of the whole evaluation, in batches of 3, of a network whose outputs are its images."""
    task = tasks.make(name, number)

    def predict(state, images):
        return {name: jnp.take(state, images[:, 0, 0, 0], axis=0)}

    rows = np.arange(len(outputs), dtype=np.uint8).reshape(-1, 1, 1, 1)
    inputs = evaluate_lib.batched(rows, {name: truth}, 3, jax.device_put, sizes)
    state = jnp.asarray(outputs, jnp.float32)
    return evaluate_lib.compile_evaluate(predict, state, inputs, lambda _: task)(inputs, state)[name]


def pictures(highest, seed=0):
    """A truth for each of SIZES, in patches of some pixels."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, highest + 1, (len(SIZES), 4, 3)).astype(np.uint8)
    return [maps.nearest(values, *size) for values, size in zip(coarse, SIZES.tolist(), strict=True)]


def test_bilinear_by_hand():
    """2 pixels to 4: centers at -1/4, 1/4, 3/4 and 5/4 of the distance between the two; to 3: at -1/6, 1/2 and 7/6."""
    values = jnp.array([[[0.0, 4.0]]])
    resized = partial(bilinear, values)
    assert resized((1, 4), jnp.array([[1, 4]])).ravel().tolist() == [0, 1, 3, 4]
    assert resized((2, 4), jnp.array([[2, 3]]))[0, :, :3].tolist() == [[0, 2, 4]] * 2
    assert resized((1, 1), jnp.array([[1, 1]])).ravel().tolist() == [2]
    assert resized((1, 4), None) is values


def test_bilinear_equals_loops():
    values = np.random.default_rng(1).normal(size=(4, SIDE, SIDE, 2)).astype(np.float32)
    resized = np.asarray(jax.jit(bilinear, static_argnums=1)(values, LARGEST, SIZES))
    for got, given, (height, width) in zip(resized, values, SIZES.tolist(), strict=True):
        for channel in range(2):
            expected = linear(given[..., channel].astype(np.float64), height, width)
            np.testing.assert_allclose(got[:height, :width, channel], expected, atol=1e-5)


def test_nearest_equals_that_of_the_data():
    values = np.random.default_rng(2).integers(0, 9, (4, SIDE, SIDE))
    resized = np.asarray(nearest(jnp.asarray(values), LARGEST, jnp.asarray(SIZES)))
    for got, given, (height, width) in zip(resized, values, SIZES.tolist(), strict=True):
        np.testing.assert_array_equal(got[:height, :width], maps.nearest(given, height, width))


def test_classes_of_a_known_size_error():
    """The prediction is the truth, resized to the network's size: all that is wrong is what the two resizings lose."""
    truths = pictures(3)
    small = [maps.nearest(truth, SIDE, SIDE) for truth in truths]
    outputs = np.eye(4)[np.stack(small)]
    got = scores('semseg', outputs, maps.padded(truths, LARGEST), SIZES, number=4)
    back = [values[(2 * np.arange(h) + 1)[:, None] * SIDE // (2 * h), (2 * np.arange(w) + 1) * SIDE // (2 * w)]
            for values, (h, w) in zip(small, SIZES.tolist(), strict=True)]  # fmt: skip
    truth, guess = (np.concatenate([values.ravel() for values in of]) for of in (truths, back))
    assert got['miou'] == pytest.approx(np.mean([iou(truth, guess, k) for k in range(4)]))
    assert got['pixelaccuracy'] == pytest.approx(np.mean(truth == guess))
    assert 0.6 < got['miou'] < 0.99
    at_the_networks_size = scores('semseg', outputs, np.stack(small), None, number=4)
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
    got = scores('saliency', outputs, maps.padded(truths, LARGEST), SIZES)['iou']
    assert got == pytest.approx(max(expected), abs=1e-6)
    assert 0.6 < got < 0.99
    assert scores('saliency', outputs, small, None)['iou'] == 1


def test_depth_at_the_original_size():
    truths = [values * 80 for values in pictures(3)]
    outputs = np.random.default_rng(3).uniform(size=(4, SIDE, SIDE, 1)).astype(np.float32)
    large = [linear(values[..., 0], *truth.shape) for values, truth in zip(outputs, truths, strict=True)]
    squares = [((a - b / 254) ** 2).ravel() for a, b in zip(large, truths, strict=True)]
    got = scores('depth', outputs, maps.padded(truths, LARGEST), SIZES)['rmse']
    assert got == pytest.approx(np.concatenate(squares).mean() ** 0.5, rel=1e-5)


def test_edges_at_the_original_size():
    """A line of the network's, two pixels wide at twice its size, is thinned to the one beside the true line or to it.

    Images of 96 x 96 in maps of 192 x 192, whose tolerance would be two pixels: the line three pixels off is wrong.
    """
    truth = np.full((2, 192, 192), IGNORED, np.uint8)
    truth[:, :96, :96] = 0
    truth[0, 20:60, 40], truth[1, 20:60, 43] = 1, 1
    outputs = np.full((2, 48, 48, 1), -9.0)
    outputs[:, 10:30, 20] = 9  # rows 20 to 59 and columns 40 and 41
    sizes = np.full((2, 2), 96, np.int32)
    assert scores('edges', outputs[:1], truth[:1], sizes[:1])['odsf'] > 0.95
    assert scores('edges', outputs[1:], truth[1:], sizes[1:])['odsf'] == 0
    assert scores('edges', outputs[1:], truth[1:], 2 * sizes[1:])['odsf'] == 0  # predicted at rows 40 to 119


def test_keypoints_at_the_original_size():
    """Within 0.05 of the longer side, which is 2 pixels of 40, not of the map's 80."""
    truth = np.full((1, 80, 80), IGNORED, np.uint8)
    truth[0, :40, :30] = 0
    truth[0, 20, 15] = 1
    for column, found in ((15, 1), (13, 1), (12, 0)):
        outputs = np.zeros((1, 40, 30, 1))
        outputs[0, 20, column] = 5
        assert scores('keypoints', outputs, truth, np.array([[40, 30]], np.int32))['ap'] == found, column
