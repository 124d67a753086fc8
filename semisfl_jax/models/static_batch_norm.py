"""SemiFL's static BatchNorm: before a model is evaluated or sent out, its statistics are recomputed over a data set.

Training uses only the statistics of each batch and is not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from semisfl_jax.core import rng
from semisfl_jax.core.types import Array, SplitModel, SplitParams
from semisfl_jax.models.layers import MOMENTUM


def recompute(
    model: SplitModel,
    variables: SplitParams,
    batches: Any,
    key: Array,
    images: Callable[[Any], Array] = lambda x: x,
    count: Array | None = None,
) -> SplitParams:
    """`variables` with every BatchNorm statistic replaced by its mean over the batches, all weighted equally.

    The cumulative average of PyTorch's BatchNorm with momentum None, in training mode. Batches are processed as in
    training, each normalized by its own statistics, so the old running ones have no effect. Can be jitted: one loop.

    Args:
      model: the split model; the statistics of bottom and top are recomputed.
      variables: bottom, top and projection head; returned unchanged without BatchNorm.
      batches: tree with leading [T]; T mini-batches, or inputs from which `images` makes them, such as rows [T, B].
      key: for dropout that precedes a BatchNorm.
      images: one element of `batches` -> normalized floats [B, H, W, C].
      count: [] int32, how many of the T are used, at least 1; None: all.
    """
    pieces = variables.bottom, variables.top
    old = tuple(piece.get('batch_stats', {}) for piece in pieces)
    if not jax.tree.leaves(old):
        return variables
    zero = jax.tree.map(jnp.zeros_like, old)
    bottom, top = ({**piece, 'batch_stats': stats} for piece, stats in zip(pieces, zero, strict=True))

    def one(t: Array, total: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        batch = jax.tree.map(lambda x: x[t], batches)
        features, moved_bottom = model.bottom(bottom, images(batch), rng.fold(key, 'bottom', t), True)
        _, moved_top = model.top(top, features, rng.fold(key, 'top', t), True)
        moved = tuple(piece.get('batch_stats', {}) for piece in (moved_bottom, moved_top))
        return jax.tree.map(jnp.add, total, moved)

    count = jax.tree.leaves(batches)[0].shape[0] if count is None else count
    total = jax.lax.fori_loop(0, count, one, zero)
    # Starting from zero, one update yields this share of the batch's statistics.
    mean = jax.tree.map(lambda x: x / ((1 - MOMENTUM) * count), total)
    new = ({**piece, 'batch_stats': stats} if stats else piece for piece, stats in zip(pieces, mean, strict=True))
    return variables._replace(**dict(zip(('bottom', 'top'), new, strict=True)))
