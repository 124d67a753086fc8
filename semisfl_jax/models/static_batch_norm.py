"""Static BatchNorm, SemiFL's: before a model is evaluated or sent out, its statistics are taken afresh over a data set.

Training itself uses the statistics of each batch and no others, so nothing there has to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from semisfl_jax import rng
from semisfl_jax.models.layers import MOMENTUM
from semisfl_jax.models.split import SplitModel
from semisfl_jax.types import Array, SplitParams


def recompute(
    model: SplitModel,
    variables: SplitParams,
    batches: Any,
    key: Array,
    images: Callable[[Any], Array] = lambda x: x,
    count: Array | None = None,
) -> SplitParams:
    """`variables` with every statistic of BatchNorm the mean of those of the batches, each batch counting the same.

    The cumulative average of PyTorch's BatchNorm with momentum None, in training mode. Batches pass as in training,
    each normalized by its own statistics, so the old running ones have no say. Can be jitted: one loop.

    Args:
      model: the split model; both pieces have their statistics taken.
      variables: bottom, top and projection head; without BatchNorm they come back as they are.
      batches: tree with leading [T]; T mini-batches, or what `images` makes them from, such as rows [T, B].
      key: for dropout that stands before a BatchNorm.
      images: one element of `batches` -> normalized floats [B, H, W, C].
      count: [] int32, how many of the T are used, at least 1; None: all.
    """
    pieces = variables.bottom, variables.top
    old = tuple(piece.get('batch_stats', {}) for piece in pieces)
    if not jax.tree.leaves(old):
        return variables
    zero = jax.tree.map(jnp.zeros_like, old)
    bottom, top = ({**piece, 'batch_stats': stats} for piece, stats in zip(pieces, zero, strict=True))

    def one(t, total):
        batch = jax.tree.map(lambda x: x[t], batches)
        features, moved_bottom = model.bottom(bottom, images(batch), rng.fold(key, 'bottom', t), True)
        _, moved_top = model.top(top, features, rng.fold(key, 'top', t), True)
        moved = tuple(piece.get('batch_stats', {}) for piece in (moved_bottom, moved_top))
        return jax.tree.map(jnp.add, total, moved)

    count = jax.tree.leaves(batches)[0].shape[0] if count is None else count
    total = jax.lax.fori_loop(0, count, one, zero)
    # From zero, a step moves to this share of the batch's statistics.
    mean = jax.tree.map(lambda x: x / ((1 - MOMENTUM) * count), total)
    new = ({**piece, 'batch_stats': stats} if stats else piece for piece, stats in zip(pieces, mean, strict=True))
    return variables._replace(**dict(zip(('bottom', 'top'), new, strict=True)))
