"""The F-measure of edges at the best threshold for the set (odsF), with a tolerance in their place.

A predicted edge pixel is right within the tolerance of a true one, and a true one is found within the tolerance of a
predicted one. Unlike in the benchmark of BSDS, whose tolerance this is, pixels are not matched one to one, and
predictions are not thinned before, so a thick edge costs precision only beyond the tolerance.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.tasks.scores import known_pixels
from semisfl_jax.tasks.task import ODSF, Scorer
from semisfl_jax.types import Array

THRESHOLDS = np.arange(1, 100) / 100  # an edge: a probability above
TOLERANCE = 0.0075  # of the diagonal of an image, but at least 1 pixel


def tolerance(height: int, width: int) -> float:
    """Pixels between the centers of a predicted and a true edge pixel at most."""
    return max(1.0, TOLERANCE * math.hypot(height, width))


def scorer() -> Scorer:
    """odsF, of counts over the whole set."""
    return Scorer(_count, _finish)


def dilate(maps: Array, radius: float) -> Array:
    """The largest value within `radius` of every pixel of [B, H, W], which are 0 or more."""
    reach = int(radius)
    height = maps.shape[1]
    wide = jnp.pad(maps, ((0, 0), (reach, reach), (0, 0)))
    result = maps
    for dy in range(-reach, reach + 1):  # the rows of a disk
        half = math.isqrt(int(radius**2 - dy**2))
        row = jax.lax.slice_in_dim(wide, reach + dy, reach + dy + height, axis=1)
        row = jax.lax.reduce_window(row, jnp.zeros((), row.dtype), jax.lax.max, (1, 1, 2 * half + 1), (1, 1, 1), 'SAME')
        result = jnp.maximum(result, row)
    return result


def _count(outputs: Array, targets: Array, valid: Array) -> tuple[Array, Array]:
    """Histograms over the number of thresholds that a probability exceeds.

    Returns:
      Of all pixels by their own probability, far from a true edge and near one, [2, thresholds + 1] int32; of pixels on
      a true edge by the largest probability near them, [thresholds + 1] int32.
    """
    known = known_pixels(targets, valid)
    probability = jnp.where(known, jax.nn.sigmoid(outputs[..., 0]), 0)
    truth = known & (targets == 1)
    radius = tolerance(*targets.shape[1:])
    near = dilate(truth.astype(jnp.float32), radius) > 0
    exceeded = _exceeded(probability)
    bins = len(THRESHOLDS) + 1
    own = _histogram(jnp.where(near, bins, 0) + exceeded, known, 2 * bins).reshape(2, bins)
    return own, _histogram(_exceeded(dilate(probability, radius)), truth, bins)


def _exceeded(probability: Array) -> Array:
    """How many thresholds are below a probability."""
    return jnp.searchsorted(jnp.asarray(THRESHOLDS, jnp.float32), probability, side='left')


def _histogram(values: Array, counted: Array, bins: int) -> Array:
    """Counts [bins] int32 of the values of counted pixels."""
    at = jnp.where(counted, values, bins).reshape(-1)  # the others are dropped
    return jnp.zeros(bins, jnp.int32).at[at].add(1, mode='drop')


def _above(histogram: np.ndarray) -> np.ndarray:
    """Pixels above each threshold, from [thresholds + 1]."""
    return np.cumsum(histogram[::-1])[::-1][1:]


def _finish(counts: Any) -> dict[str, float]:
    own, found = (np.asarray(x, np.int64).sum(axis=0) for x in counts)
    if not found.any():
        return {ODSF.name: float('nan')}
    far, hits = (_above(row) for row in own)
    precision = hits / np.maximum(far + hits, 1)
    recall = _above(found) / found.sum()
    f = 2 * precision * recall / np.maximum(precision + recall, np.finfo(float).tiny)
    return {ODSF.name: float(f.max())}
