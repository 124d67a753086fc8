"""Scorers of pixels: mIoU of classes, IoU of saliency, RMSE of depth.

Each has a `count` for the compiled evaluation, of outputs [B, H, W, outputs], targets [B, H, W] uint8, valid [B] and,
where outputs have another size than targets, `sizes` [B, 2]; and a `finish` in float64 on the host. Pixels without
truth and rows that are not valid count nowhere. A score of no pixel at all is nan.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array
from semisfl_jax.tasks import resize
from semisfl_jax.tasks.dense_losses import DEPTH_STEPS
from semisfl_jax.tasks.task import IGNORED, IOU, MIOU, PIXELS, RMSE, Scorer

SALIENCY_THRESHOLDS = np.linspace(0.2, 0.9, 15)  # as in ASTMT and Vandenhende's code


def known_pixels(targets: Array, valid: Array) -> Array:
    """Pixels [B, H, W] bool that count."""
    return (targets != IGNORED) & valid[:, None, None]


def share(part: float, whole: float) -> float:
    """Their quotient, nan if there is nothing to divide by."""
    return float(part) / float(whole) if whole else float('nan')


def confusion(classes: int) -> Scorer:
    """The confusion matrix over the set.

    mIoU is the mean over classes of TP / (TP + FP + FN), summed over the whole set. Classes that occur neither in the
    truth nor in the prediction are left out of the mean.
    """

    def count(outputs: Array, targets: Array, valid: Array, sizes: Array | None = None) -> Array:
        """[classes, classes] int32, rows: truth, columns: prediction."""
        predicted = resize.nearest(jnp.argmax(outputs, axis=-1), targets.shape[1:], sizes)
        cell = targets.astype(jnp.int32) * classes + predicted
        cell = jnp.where(known_pixels(targets, valid), cell, classes**2)  # which is dropped
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
    """IoU of the foreground, averaged over images, at the threshold that is best for the set.

    As in ASTMT and Vandenhende's code, except that probabilities are not rounded to 256 levels before: pixels above the
    threshold are foreground, and an image without any, true or predicted, has 1. Images without truth are left out.
    """

    def count(outputs: Array, targets: Array, valid: Array, sizes: Array | None = None) -> tuple[Array, Array, Array]:
        """Intersection and union [B, thresholds] int32, and whether the image counts [B]."""
        known = known_pixels(targets, valid)
        truth = (known & (targets == 1))[..., None]
        thresholds = jnp.asarray(SALIENCY_THRESHOLDS, jnp.float32)
        probability = resize.bilinear(jax.nn.sigmoid(outputs), targets.shape[1:], sizes)
        above = known[..., None] & (probability > thresholds)
        intersection, union = (jnp.sum(x, axis=(1, 2), dtype=jnp.int32) for x in (above & truth, above | truth))
        return intersection, union, jnp.any(known, axis=(1, 2))

    def finish(counts: Any) -> dict[str, float]:
        intersection, union, counted = (np.concatenate(list(x)) for x in counts)
        iou = np.where(union > 0, intersection / np.maximum(union, 1), 1.0)[counted]
        return {IOU.name: float(iou.mean(axis=0).max()) if len(iou) else float('nan')}

    return Scorer(count, finish)


def depth() -> Scorer:
    """The root of the mean squared error over all pixels of the set, in units of [0, 1]."""

    def count(outputs: Array, targets: Array, valid: Array, sizes: Array | None = None) -> tuple[Array, Array]:
        """Squared errors [B] float32 and pixels [B] int32 of every image."""
        known = known_pixels(targets, valid)
        predicted = resize.bilinear(outputs[..., 0], targets.shape[1:], sizes)
        error = jnp.where(known, predicted - targets / jnp.float32(DEPTH_STEPS), 0)
        return jnp.sum(error**2, axis=(1, 2)), jnp.sum(known, axis=(1, 2), dtype=jnp.int32)

    def finish(counts: Any) -> dict[str, float]:
        squares, pixels = (np.sum(x, dtype=np.float64) for x in counts)
        return {RMSE.name: share(squares, pixels) ** 0.5}

    return Scorer(count, finish)
