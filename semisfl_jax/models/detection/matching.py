"""Which object each anchor or proposal learns to find, and samples of them (Ren et al., 2015; Girshick, 2015)."""

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array
from semisfl_jax.models.detection.boxes import iou

BACKGROUND, BETWEEN = -1, -2


def match(objects: Array, valid: Array, boxes: Array, low: float, high: float, best: bool) -> Array:
    """Assigns objects to boxes by their overlap.

    Args:
      objects: [G, 4].
      valid: [G] bool, which objects there are.
      boxes: [N, 4].
      low: intersection over union below which a box is background.
      high: the one from which it belongs to the object that it overlaps most.
      best: whether the boxes that overlap an object most belong to the object that they overlap most, however little.

    Returns:
      [N] indices of objects, BACKGROUND, or BETWEEN, which is neither.
    """
    overlaps = jnp.where(valid[:, None], iou(objects, boxes), -1)  # [G, N]
    most, index = overlaps.max(axis=0), overlaps.argmax(axis=0)
    matched = jnp.where(most < low, BACKGROUND, jnp.where(most < high, BETWEEN, index))
    if best:
        # The objects that no box overlaps claim none
        claimed = (overlaps == overlaps.max(axis=1, keepdims=True)) & valid[:, None] & (overlaps > 0)
        matched = jnp.where(claimed.any(axis=0), index, matched)
    return matched


def sample(key: Array, positive: Array, negative: Array, count: int, share: float) -> tuple[Array, Array]:
    """Draws boxes to learn from: at most a share of positive ones, filled up with negative ones.

    Args:
      key: of the draw.
      positive: [N] bool.
      negative: [N] bool.
      count: K, how many at most.
      share: the largest share of positive ones.

    Returns:
      Indices [K] of boxes, positive ones first, and [K] bool, which of them there are.
    """
    most, rank = int(count * share), jax.random.uniform(key, positive.shape)
    first, rest = (
        jax.lax.top_k(jnp.where(marked, -rank, -2), min(count, len(rank)))[1] for marked in (positive, negative)
    )
    taken = jnp.minimum(positive.sum(), most)
    places = jnp.arange(count)
    chosen = jnp.where(places < taken, first[jnp.minimum(places, len(first) - 1)], rest[(places - taken) % len(rest)])
    return chosen, places < taken + negative.sum()
