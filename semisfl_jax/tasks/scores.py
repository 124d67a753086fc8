"""Scorers of pixels: mIoU of classes, IoU of saliency, RMSE of depth, AP of keypoints.

Each has a `count` for the compiled evaluation, which takes outputs [B, H, W, outputs], targets [B, H, W] uint8, valid
[B] and, if outputs and targets differ in size, `sizes` [B, 2]; and a `finish` in float64 on the host. Pixels without
truth and rows that are not valid count nowhere. A score over no pixels is nan.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array
from semisfl_jax.tasks.dense_losses import DEPTH_STEPS
from semisfl_jax.tasks.task import AP, IGNORED, IOU, MIOU, PIXELS, RMSE, Scorer

SALIENCY_THRESHOLDS = np.linspace(0.2, 0.9, 15)  # as in ASTMT and Vandenhende's code


def known_pixels(targets: Array, valid: Array) -> Array:
    """Returns the pixels that count: those with a truth, in valid rows.

    Args:
      targets: [B, H, W].
      valid: [B] bool.

    Returns:
      [B, H, W] bool.
    """
    return (targets != IGNORED) & valid[:, None, None]


def share(part: float, whole: float) -> float:
    """Divides `part` by `whole`; nan if `whole` is 0."""
    return float(part) / float(whole) if whole else float('nan')


def confusion(classes: int) -> Scorer:
    """Builds the scorer of mIoU and pixel accuracy, from a confusion matrix over the set.

    mIoU is the mean over classes of TP / (TP + FP + FN), summed over the whole set. Classes that occur neither in the
    truth nor in the prediction are left out of the mean.
    """

    def count(outputs: Array, targets: Array, valid: Array, sizes: Array | None = None) -> Array:
        """Returns the confusion matrix [classes, classes] int32; rows: truth, columns: prediction."""
        predicted = nearest(jnp.argmax(outputs, axis=-1), targets.shape[1:], sizes)
        cell = targets.astype(jnp.int32) * classes + predicted
        cell = jnp.where(known_pixels(targets, valid), cell, classes**2)  # out of range, so dropped
        cells = jnp.zeros(classes**2, jnp.int32).at[cell.reshape(-1)].add(1, mode='drop')
        return cells.reshape(classes, classes)

    def finish(counts: Any) -> dict[str, float]:
        matrix = np.sum(counts, axis=0, dtype=np.int64)
        correct = np.diag(matrix)
        union = matrix.sum(axis=0) + matrix.sum(axis=1) - correct
        present = union > 0
        return {
            MIOU.name: share(np.sum(correct[present] / union[present]), present.sum()),
            PIXELS.name: share(correct.sum(), matrix.sum()),
        }

    return Scorer(count, finish)


def saliency() -> Scorer:
    """Builds the scorer of the foreground's IoU, averaged over images, at the best threshold for the set.

    As in ASTMT and Vandenhende's code, pixels above the threshold are foreground, and an image without any, true or
    predicted, has an IoU of 1; unlike there, probabilities are not rounded to 256 levels first. Images without truth
    are left out. If all known pixels of the set are foreground, or none is, the score is nan: it would be 1 without any
    skill.
    """

    def count(outputs: Array, targets: Array, valid: Array, sizes: Array | None = None) -> tuple[Array, ...]:
        """Returns intersection and union [B, thresholds] int32, and which images have pixels of each kind, [B] each."""
        known = known_pixels(targets, valid)
        truth = (known & (targets == 1))[..., None]
        thresholds = jnp.asarray(SALIENCY_THRESHOLDS, jnp.float32)
        probability = bilinear(jax.nn.sigmoid(outputs), targets.shape[1:], sizes)
        above = known[..., None] & (probability > thresholds)
        intersection, union = (jnp.sum(x, axis=(1, 2), dtype=jnp.int32) for x in (above & truth, above | truth))
        return intersection, union, jnp.any(truth, axis=(1, 2, 3)), jnp.any(known & (targets != 1), axis=(1, 2))

    def finish(counts: Any) -> dict[str, float]:
        intersection, union, shown, around = (np.concatenate(list(x)) for x in counts)
        iou = np.where(union > 0, intersection / np.maximum(union, 1), 1.0)[shown | around]
        return {IOU.name: float(iou.mean(axis=0).max()) if shown.any() and around.any() else float('nan')}

    return Scorer(count, finish)


def depth() -> Scorer:
    """Builds the scorer of the root mean squared error over all pixels of the set, in units of [0, 1]."""

    def count(outputs: Array, targets: Array, valid: Array, sizes: Array | None = None) -> tuple[Array, Array]:
        """Sums the squared errors [B] float32 and the known pixels [B] int32 of every image."""
        known = known_pixels(targets, valid)
        predicted = bilinear(outputs[..., 0], targets.shape[1:], sizes)
        error = jnp.where(known, predicted - targets / jnp.float32(DEPTH_STEPS), 0)
        return jnp.sum(error**2, axis=(1, 2)), jnp.sum(known, axis=(1, 2), dtype=jnp.int32)

    def finish(counts: Any) -> dict[str, float]:
        squares, pixels = (np.sum(x, dtype=np.float64) for x in counts)
        return {RMSE.name: share(squares, pixels) ** 0.5}

    return Scorer(count, finish)


# --- predictions resized to the size of the truth, where it differs from the network's


def nearest(maps: Array, shape: tuple[int, ...], sizes: Array | None) -> Array:
    """Resizes maps; each pixel takes the value under its center.

    Args:
      maps: [B, h, w, ...].
      shape: H, W of the result.
      sizes: [B, 2] height and width that each map is resized to, in the upper left corner, while the rest has no
        meaning; None leaves the maps unchanged.

    Returns:
      [B, H, W, ...].
    """

    def one(values: Array, size: Array) -> Array:
        rows, columns = (
            jnp.minimum((2 * jnp.arange(shape[k]) + 1) * values.shape[k] // (2 * size[k]), values.shape[k] - 1)
            for k in (0, 1)
        )
        return values[rows[:, None], columns]

    return maps if sizes is None else jax.vmap(one)(maps, sizes)


def bilinear(maps: Array, shape: tuple[int, ...], sizes: Array | None) -> Array:
    """Resizes maps with half-pixel centers and no smoothing, as in PyTorch and OpenCV.

    Args:
      maps: [B, h, w, ...].
      shape: H, W of the result.
      sizes: [B, 2] height and width that each map is resized to, in the upper left corner, while the rest has no
        meaning; None leaves the maps unchanged.

    Returns:
      [B, H, W, ...].
    """

    def one(values: Array, size: Array) -> Array:
        for k in (0, 1):
            last = values.shape[k] - 1
            places = jnp.clip((jnp.arange(shape[k]) + 0.5) * values.shape[k] / size[k] - 0.5, 0, last)
            before = jnp.floor(places).astype(jnp.int32)
            share = (places - before).reshape(-1, *[1] * (values.ndim - 1 - k))
            after = jnp.minimum(before + 1, last)
            values = (1 - share) * jnp.take(values, before, axis=k) + share * jnp.take(values, after, axis=k)
        return values

    return maps if sizes is None else jax.vmap(one)(maps, sizes)


# --- average precision of keypoints: peaks of the heat maps against the true points
#
# A peak is a pixel with no higher one among the 8 around it; an image has at most PEAKS per type. Within an image and a
# type, peaks take true points from the highest peak down, each the nearest free point within DISTANCE. The sizes of
# objects are unknown, so this is not COCO's object keypoint similarity.

PEAKS = 20  # per image and type, the highest
POINTS = 40  # true points per image and type that peaks can take; further ones count, but are never found
DISTANCE = 0.05  # share of the image's longer side; a peak at most this far from a true point is right


def keypoints() -> Scorer:
    """Builds the scorer of AP, the mean over types that have a true point in the set."""
    return Scorer(_count_peaks, _mean_precision)


def average_precision(height: np.ndarray, right: np.ndarray, points: int) -> float:
    """Computes the area under the interpolated precision-recall curve, at all its points.

    Args:
      height: [n] scores of detections, in any order; equal ones are accepted together.
      right: [n] bool.
      points: number of true points, at least 1.
    """
    order = np.argsort(-height, kind='stable')
    height, hits = height[order], np.cumsum(right[order])
    last = np.flatnonzero(np.append(height[1:] != height[:-1], True)) if len(height) else np.zeros(0, int)
    precision, recall = hits[last] / (last + 1), hits[last] / points
    best = np.maximum.accumulate(precision[::-1])[::-1]  # the highest precision at this recall or above
    return float(np.sum(np.diff(recall, prepend=0.0) * best))


def is_peak(maps: Array) -> Array:
    """Marks pixels [B, H, W, K] bool that are at least as high as the 8 around them."""
    around = jax.lax.reduce_window(maps, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), 'SAME')
    return maps >= around


def _count_peaks(
    outputs: Array, targets: Array, valid: Array, sizes: Array | None = None
) -> tuple[Array, Array, Array]:
    """Returns the peaks of a batch of images.

    They are heights [B, K, PEAKS] float32, descending, padded with -inf; whether each has taken a true point, [B, K,
    PEAKS] bool; and the number of true points [B, K] int32, including those beyond POINTS.
    """
    outputs = bilinear(outputs, targets.shape[1:], sizes)
    height, width, types = outputs.shape[1:]
    longer = jnp.float32(max(height, width)) if sizes is None else jnp.max(sizes, axis=1)[:, None, None, None]
    known = known_pixels(targets, valid)[..., None]
    truth = known & (targets[..., None] == jnp.arange(1, types + 1))
    peaks = jnp.where(is_peak(outputs) & known, outputs, -jnp.inf)
    heights, where = _largest(peaks, PEAKS)
    marks, points = _largest(truth.astype(jnp.float32), POINTS)
    limit = (DISTANCE * longer) ** 2
    places = map(jnp.asarray, np.divmod(np.arange(height * width, dtype=np.int32), width))  # rows, columns [H * W]
    squared = sum((of[where][..., None] - of[points][..., None, :]) ** 2 for of in places)
    near = (squared <= limit) & jnp.isfinite(heights)[..., None] & (marks > 0)[..., None, :]  # [B, K, peaks, points]

    def take(free: Array, peak: tuple[Array, Array]) -> tuple[Array, Array]:
        """Gives the next peak of every image and type a point that is `free` [B, K, points], or none."""
        distance, within = peak
        distance = jnp.where(within & free, distance, jnp.iinfo(jnp.int32).max)
        chosen = jax.nn.one_hot(jnp.argmin(distance, axis=-1), distance.shape[-1], dtype=bool) & within & free
        return free & ~chosen, jnp.any(chosen, axis=-1)

    by_peak = jnp.moveaxis(squared, 2, 0), jnp.moveaxis(near, 2, 0)
    _, right = jax.lax.scan(take, jnp.ones_like(near[:, :, 0]), by_peak)
    return heights, jnp.moveaxis(right, 0, 2), jnp.sum(truth, axis=(1, 2), dtype=jnp.int32)


def _largest(maps: Array, most: int) -> tuple[Array, Array]:
    """Returns the largest values of [B, H, W, K], descending, and their pixels: both [B, K, `most`, or all pixels]."""
    batch, height, width, types = maps.shape
    flat = jnp.moveaxis(maps, -1, 1).reshape(batch, types, height * width)
    values, pixels = jax.lax.top_k(flat, min(most, height * width))
    return values, pixels


def _mean_precision(counts: Any) -> dict[str, float]:
    height, right, points = (np.concatenate(list(x)) for x in counts)
    scores = []
    for k in np.flatnonzero(points.sum(axis=0)):
        detected = np.isfinite(height[:, k])
        total = int(points[:, k].sum())
        scores.append(average_precision(height[:, k][detected], right[:, k][detected], total))
    return {AP.name: float(np.mean(scores)) if scores else float('nan')}
