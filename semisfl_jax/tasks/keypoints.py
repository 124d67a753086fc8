"""Average precision of keypoints: peaks of the heat maps against the true points.

A peak is a pixel of which none of the 8 around is higher; every image has at most PEAKS per type. Within an image and a
type, peaks take true points in the order of their heights, each the nearest one that is left within DISTANCE. As only a
point's place counts here, and no size of an object is known, this is not COCO's object keypoint similarity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array
from semisfl_jax.tasks import resize
from semisfl_jax.tasks.scores import known_pixels
from semisfl_jax.tasks.task import AP, Scorer

PEAKS = 20  # per image and type, the highest
POINTS = 40  # true points per image and type that peaks can take; more than that are counted, but never found
DISTANCE = 0.05  # of the longer side of the image: a peak at most so far from a true point is right


class Peaks(NamedTuple):
    """What a batch of images contributes."""

    height: Array  # [B, K, PEAKS] float32 descending, -inf: fewer peaks than that
    right: Array  # [B, K, PEAKS] bool, has taken a true point
    points: Array  # [B, K] int32, true points, also those beyond POINTS


def scorer() -> Scorer:
    """AP, the mean over types that have a true point in the set."""
    return Scorer(_count, _finish)


def average_precision(height: np.ndarray, right: np.ndarray, points: int) -> float:
    """The area under the interpolated precision-recall curve, at all points of it.

    Args:
      height: [n], of detections in any order; equal ones are accepted together.
      right: [n] bool.
      points: what there was to detect, at least 1.
    """
    order = np.argsort(-height, kind='stable')
    height, hits = height[order], np.cumsum(right[order])
    last = np.flatnonzero(np.append(height[1:] != height[:-1], True)) if len(height) else np.zeros(0, int)
    precision, recall = hits[last] / (last + 1), hits[last] / points
    best = np.maximum.accumulate(precision[::-1])[::-1]  # the highest at this recall or a larger one
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def is_peak(maps: Array) -> Array:
    """Pixels [B, H, W, K] bool that are at least as high as the 8 around them."""
    around = jax.lax.reduce_window(maps, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), 'SAME')
    return maps >= around


def _count(outputs: Array, targets: Array, valid: Array, sizes: Array | None = None) -> Peaks:
    outputs = resize.bilinear(outputs, targets.shape[1:], sizes)
    height, width, types = outputs.shape[1:]
    longer = jnp.float32(max(height, width)) if sizes is None else jnp.max(sizes, axis=1)[:, None, None, None]
    known = known_pixels(targets, valid)[..., None]
    truth = known & (targets[..., None] == jnp.arange(1, types + 1))
    peaks = jnp.where(is_peak(outputs) & known, outputs, -jnp.inf)
    heights, where = _largest(peaks, PEAKS)
    marks, points = _largest(truth.astype(jnp.float32), POINTS)
    limit = (DISTANCE * longer) ** 2
    squared = sum((of[where][..., None] - of[points][..., None, :]) ** 2 for of in _coordinates(height, width))
    near = (squared <= limit) & jnp.isfinite(heights)[..., None] & (marks > 0)[..., None, :]  # [B, K, peaks, points]

    def take(free: Array, peak: tuple[Array, Array]) -> tuple[Array, Array]:
        """The next peak of every image and type takes a point that is `free` [B, K, points], or none."""
        distance, within = peak
        distance = jnp.where(within & free, distance, jnp.iinfo(jnp.int32).max)
        chosen = jax.nn.one_hot(jnp.argmin(distance, axis=-1), distance.shape[-1], dtype=bool) & within & free
        return free & ~chosen, jnp.any(chosen, axis=-1)

    by_peak = jnp.moveaxis(squared, 2, 0), jnp.moveaxis(near, 2, 0)
    _, right = jax.lax.scan(take, jnp.ones_like(near[:, :, 0]), by_peak)
    return Peaks(heights, jnp.moveaxis(right, 0, 2), jnp.sum(truth, axis=(1, 2), dtype=jnp.int32))


def _largest(maps: Array, most: int) -> tuple[Array, Array]:
    """The largest values of [B, H, W, K], in falling order, and their pixels: both [B, K, `most`, or all pixels]."""
    batch, height, width, types = maps.shape
    flat = jnp.moveaxis(maps, -1, 1).reshape(batch, types, height * width)
    values, pixels = jax.lax.top_k(flat, min(most, height * width))
    return values, pixels


def _coordinates(height: int, width: int) -> tuple[Array, Array]:
    """Row and column of every pixel [H * W] int32."""
    rows, columns = np.divmod(np.arange(height * width, dtype=np.int32), width)
    return jnp.asarray(rows), jnp.asarray(columns)


def _finish(counts: Any) -> dict[str, float]:
    height, right, points = (np.concatenate(list(x)) for x in counts)
    scores = []
    for k in np.flatnonzero(points.sum(axis=0)):
        detected = np.isfinite(height[:, k])
        total = int(points[:, k].sum())
        scores.append(average_precision(height[:, k][detected], right[:, k][detected], total))
    return {AP.name: float(np.mean(scores)) if scores else float('nan')}
