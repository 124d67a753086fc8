"""Losses of dense tasks against NumPy written from the formulas, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import tasks
from semisfl_jax.tasks import IGNORED

SHAPE = (3, 5, 6)
HIGHEST = {'semseg': 4, 'saliency': 1, 'edges': 1, 'depth': 254, 'keypoints': 3}  # of the targets
OUTPUTS = {'semseg': 5, 'saliency': 1, 'edges': 1, 'depth': 1, 'keypoints': 3}


def example(name, seed=0):
    """Outputs and targets, a fifth of them without truth."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(scale=2, size=(*SHAPE, OUTPUTS[name])).astype(np.float32)
    targets = rng.integers(0, HIGHEST[name] + 1, SHAPE)
    if name == 'keypoints':
        targets *= rng.uniform(size=SHAPE) < 0.1
    return outputs, np.where(rng.uniform(size=SHAPE) < 0.2, IGNORED, targets).astype(np.uint8)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_hand(name, outputs, targets):
    """The mean over known pixels, one after the other."""
    outputs = outputs.astype(np.float64)
    known = [where for where in np.ndindex(SHAPE) if targets[where] != IGNORED]
    positive = np.mean([targets[where] == 1 for where in known])
    rows = []
    for where in known:
        x, y = outputs[where], int(targets[where])
        if name == 'semseg':
            rows.append(-np.log(np.exp(x[y]) / np.exp(x).sum()))
        elif name == 'depth':
            rows.append(abs(x[0] - y / 254))
        elif name == 'keypoints':
            b, i, j = where
            terms = []
            for k in range(3):
                places = np.argwhere(targets[b] == k + 1)
                window = [(i - u, j - v) for u, v in places if max(abs(i - u), abs(j - v)) <= 5]
                heat = max([np.exp(-(u**2 + v**2) / (2 * 1.5**2)) for u, v in window], default=0.0)
                terms.append(-0.95 * heat * np.log(sigmoid(x[k])) - 0.05 * (1 - heat) * np.log(sigmoid(-x[k])))
            rows.append(np.mean(terms))
        else:
            weight = {'saliency': 1 - positive, 'edges': 0.95}[name]
            rows.append(-weight * np.log(sigmoid(x[0])) if y else -(1 - weight) * np.log(sigmoid(-x[0])))
    return np.mean(rows)


@pytest.fixture(params=list(OUTPUTS))
def task(request):
    return tasks.make(request.param, OUTPUTS[request.param])


def test_loss_equals_numpy(task):
    outputs, targets = example(task.name)
    np.testing.assert_allclose(task.loss(outputs, targets), by_hand(task.name, outputs, targets), rtol=1e-5)


def test_without_truth_the_loss_is_zero(task):
    outputs, targets = example(task.name)
    loss, gradient = jax.value_and_grad(task.loss)(jnp.asarray(outputs), np.full_like(targets, IGNORED))
    assert loss == 0
    assert not np.asarray(gradient).any()


def test_gradients_are_finite_and_none_is_of_unknown_pixels(task):
    outputs, targets = example(task.name)
    for size in (0.0, 100.0, 1e30):
        for fill in (None, 0, 1):
            truth = targets if fill is None else np.full_like(targets, fill)
            loss, gradient = jax.value_and_grad(task.loss)(jnp.asarray(size * np.sign(outputs)), truth)
            assert np.isfinite(loss)
            assert np.isfinite(gradient).all()
            assert not np.asarray(gradient)[truth == IGNORED].any()
