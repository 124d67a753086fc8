"""Boxes: overlap, coding relative to references, anchors, and suppression of those that overlap a better one."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array

MAX_LOG = math.log(1000 / 16)  # bound on the predicted logarithm of a scale, so that its exponential stays finite


def area(boxes: Array) -> Array:
    """Returns the areas [...] of boxes [..., 4]."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def iou(boxes: Array, others: Array) -> Array:
    """Computes the intersection over union of every box with every other.

    Args:
      boxes: [N, 4].
      others: [M, 4].

    Returns:
      [N, M] in [0, 1]; 0 for boxes without area.
    """
    low = jnp.maximum(boxes[:, None, :2], others[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], others[None, :, 2:])
    inside = jnp.prod(jnp.maximum(high - low, 0), axis=-1)
    union = area(boxes)[:, None] + area(others)[None] - inside
    return inside / jnp.where(union > 0, union, 1)


def encode(boxes: Array, references: Array, weights: Sequence[float] = (1, 1, 1, 1)) -> Array:
    """Codes boxes relative to references (Girshick et al., 2014, Appendix C).

    Args:
      boxes: [..., 4].
      references: [..., 4], of positive width and height.
      weights: factors of the four offsets: (1, 1, 1, 1) for proposals, (10, 10, 5, 5) for detections.

    Returns:
      [..., 4]: shifts of the center in units of the reference's size, and logarithms of the ratios of width and height.
    """
    center, size = _center_size(references)
    to_center, to_size = _center_size(boxes)
    return jnp.concatenate([(to_center - center) / size, jnp.log(to_size / size)], axis=-1) * jnp.array(weights, float)


def decode(offsets: Array, references: Array, weights: Sequence[float] = (1, 1, 1, 1)) -> Array:
    """Returns the boxes [..., 4] that `encode` coded; growth is bounded by 1000 / 16."""
    center, size = _center_size(references)
    offsets = offsets / jnp.array(weights, float)
    to_center = offsets[..., :2] * size + center
    half = jnp.exp(jnp.minimum(offsets[..., 2:], MAX_LOG)) * size / 2
    return jnp.concatenate([to_center - half, to_center + half], axis=-1)


def _center_size(boxes: Array) -> tuple[Array, Array]:
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + size / 2, size


def clip(boxes: Array, height: Array | int, width: Array | int) -> Array:
    """Clips boxes [..., 4] to an image."""
    return jnp.clip(boxes, 0, jnp.array([width, height, width, height], boxes.dtype))


def flip(boxes: Array, width: int) -> Array:
    """Mirrors boxes [..., 4] left to right in an image of this width."""
    return jnp.stack([width - boxes[..., 2], boxes[..., 1], width - boxes[..., 0], boxes[..., 3]], axis=-1)


def anchors(
    image: tuple[int, int], maps: Sequence[tuple[int, int]], sizes: Sequence[float], ratios: Sequence[float]
) -> list[np.ndarray]:
    """Lays anchors over an image, whose sides are rounded to whole pixels as in the papers' code.

    Args:
      image: height and width.
      maps: height and width of the feature map of each level.
      sizes: the side of a square anchor of each level, in pixels.
      ratios: height / width of the anchors at one place.

    Returns:
      For each level, [h * w * ratios, 4] float32, row by row, the ratios of a place together.
    """
    tall = np.sqrt(np.array(ratios, np.float32))
    levels = []
    for (h, w), size in zip(maps, sizes, strict=True):
        wide, high = np.float32(size) / tall, np.float32(size) * tall
        shapes = np.round(np.stack([-wide, -high, wide, high], axis=1) / 2)  # [ratios, 4]
        y, x = np.meshgrid(np.arange(h) * (image[0] // h), np.arange(w) * (image[1] // w), indexing='ij')
        places = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4)
        levels.append((places + shapes).reshape(-1, 4).astype(np.float32))
    return levels


def suppress(
    boxes: Array, scores: Array, groups: Array, valid: Array, threshold: float, keep: int
) -> tuple[Array, Array]:
    """Keeps the boxes with the highest scores that overlap no better one of their group (non-maximum suppression).

    Args:
      boxes: [N, 4].
      scores: [N].
      groups: [N] integers: levels, or classes.
      valid: [N] bool, which boxes there are.
      threshold: the intersection over union above which the box with the lower score goes.
      keep: K, how many are returned at most.

    Returns:
      Indices [K] of the boxes that stay, best first, and [K] bool, which of them there are.
    """
    order = jnp.argsort(-jnp.where(valid, scores, -jnp.inf), stable=True)
    boxes, groups, valid = boxes[order], groups[order], valid[order]
    overlaps = (iou(boxes, boxes) > threshold) & (groups[:, None] == groups[None])
    later = jnp.arange(len(boxes))

    def visit(i: Array, stays: Array) -> Array:
        return stays & ~(overlaps[i] & stays[i] & (later > i))

    stays = jax.lax.fori_loop(0, len(boxes), visit, valid)
    first = jnp.argsort(~stays, stable=True)[:keep]
    first = jnp.pad(first, (0, keep - len(first)))
    return order[first], stays[first] & (jnp.arange(keep) < len(boxes))
