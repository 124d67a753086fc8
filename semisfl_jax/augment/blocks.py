"""What a CPU leaves out of RandAugment: images that no operation changes, and steps that no image needs.

With `mc`, half of the images stay as they are, and each of the others needs one step of three. So a CPU sorts a batch
by operation and takes block by block, and a block makes those steps alone that one of its images needs. A GPU or TPU
would wait for loops and conditions that depend on what was drawn, and makes all steps for all images.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from semisfl_jax.augment import lookups
from semisfl_jax.augment.variants import Variant
from semisfl_jax.core import machine
from semisfl_jax.core.types import Array, Tree

BLOCK = 16  # images


def changed(
    change: Callable[..., Array], alike: Sequence[str], variant: Variant, planes: Array, op: Array, *others: Array
) -> Array:
    """Applies to every image its operation; on a CPU only to the images that an operation changes, in blocks.

    Args:
      change: (planes, op, *others), each with any length of the leading axis -> the images after their operations.
      alike: the names of the operations, ordered so that those with the same steps are adjacent, Identity last.
      variant: the RandAugment variant.
      planes: [B, C, H, W] uint8.
      op: [B] int32, index into variant.operations; images with Identity are not changed.
      *others: [B, ...].

    Returns:
      [B, C, H, W] uint8.
    """
    if not _skips():
        return change(planes, op, *others)

    @lookups.as_one_batch  # the loops of several batches under vmap would all be as long as the longest
    def result(planes: Array, op: Array, *others: Array) -> Array:
        same = is_one_of(op, ('Identity',), variant)
        ranks = jnp.asarray([alike.index(name) for name in variant.operations])
        order, at_once = jnp.argsort(ranks[op]), min(BLOCK, len(op))

        def block(i: Array, result: Array) -> Array:
            rows = lax.dynamic_slice(order, (i * at_once,), (at_once,))  # the last block may begin in the one before
            new = change(*(x[rows] for x in (planes, op, *others)))
            return result.at[rows].set(new, unique_indices=True)

        return lax.fori_loop(0, -(-jnp.sum(~same) // at_once), block, planes)

    return result(planes, op, *others)


def if_any(needed: Array, step: Callable[[], Tree], skipped: Callable[[], Tree]) -> Tree:
    """`step()` if any of `needed` [B] bool is true; else `skipped()`, which must give the same where none is needed."""
    return lax.cond(jnp.any(needed), step, skipped) if _skips() else step()


def is_one_of(op: Array, names: Collection[str], variant: Variant) -> Array:
    """Whether the operations `op` are among `names`: bool of the shape of `op`."""
    return jnp.asarray(np.isin(variant.operations, tuple(names)))[op]


def _skips() -> bool:
    return machine.platform() == 'cpu'
