"""The parts of RandAugment that differ between platforms: reading and counting single values, and skipping.

A TPU gathers and scatters element by element, in programs that take its compiler most of a round's minutes. So on a TPU
we multiply with one-hot rows instead. Products are exact: a single term of each sum is not zero, and bfloat16 holds all
integers to 256.
"""

from collections.abc import Callable, Collection, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from semisfl_jax.augment.variants import Variant
from semisfl_jax.base import machine
from semisfl_jax.core.types import Array, Tree

MOST_POSITIONS = 64 * 64  # the largest images that are read by products, whose work grows with the square


def pixels(planes: Array, index: Array) -> Array:
    """Reads pixels of planes.

    Args:
      planes: [B, C, S] uint8.
      index: positions [B, T] int32 in 0 .. S - 1, the same in all channels.

    Returns:
      The pixels [B, C, T].
    """
    if by_products() and planes.shape[2] <= MOST_POSITIONS:
        return _exact('bts,bcs->bct', _one_hot(index, planes.shape[2]), planes)
    return jnp.take_along_axis(planes, index[:, None], axis=2, mode='promise_in_bounds')


def table(values: Array, entries: Array) -> Array:
    """Looks values up in tables.

    Args:
      values: [B, C, S] int32 in 0 .. N - 1.
      entries: the tables [B, C, N], integers of -256 .. 256.

    Returns:
      The entries of the values [B, C, S].
    """
    if by_products():
        return _exact('bcsn,bcn->bcs', _one_hot(values, entries.shape[2]), entries)
    return jnp.take_along_axis(entries, values, axis=2, mode='promise_in_bounds')


def cumulative_histogram(values: Array) -> Array:
    """Counts the values [B, C, S] uint8 that are at most 0 .. 255: [B, C, 256] int32."""
    if by_products():
        return jnp.sum(values[..., None] <= jnp.arange(256, dtype=jnp.uint8), axis=2, dtype=jnp.int32)
    return jnp.cumsum(_histogram(values), axis=-1)


def as_one_batch(function: Callable[..., Tree]) -> Callable[..., Tree]:
    """Makes vmap of a function of batches call it once, on a single longer batch.

    `function` maps arrays [B, ...] to a tree of arrays [B, ...]. Under vmap over V such batches it gets arrays [V * B,
    ...], instead of an extra axis.
    """
    merged = jax.custom_batching.custom_vmap(function)

    @merged.def_vmap
    def _(axis_size: int, in_batched: list[bool], *arrays: Array) -> tuple[Tree, Tree]:
        every = [
            x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, batched in zip(arrays, in_batched, strict=True)
        ]
        results = merged(*(x.reshape(-1, *x.shape[2:]) for x in every))
        results = jax.tree.map(lambda x: x.reshape(axis_size, -1, *x.shape[1:]), results)
        return results, jax.tree.map(lambda _: True, results)

    return merged


@as_one_batch  # a scatter with a batch axis takes twice as long
def _histogram(values: Array) -> Array:
    """Counts values [B, C, S] uint8: [B, C, 256] int32."""
    batch, channels, _ = values.shape
    start = 256 * jnp.arange(batch * channels).reshape(batch, channels, 1)
    counts = jnp.zeros(batch * channels * 256, jnp.int32)
    counts = counts.at[(start + values).reshape(-1)].add(1, mode='promise_in_bounds')
    return counts.reshape(batch, channels, 256)


def by_products() -> bool:
    """Returns True if programs are written for a TPU, and lookups are products."""
    return machine.platform() == 'tpu'


def _one_hot(index: Array, size: int) -> Array:
    return (index[..., None] == jnp.arange(size)).astype(jnp.bfloat16)


def _exact(subscripts: str, one_hot: Array, values: Array) -> Array:
    """Multiplies one-hot rows with integers of -256 .. 256 and returns the integers' type."""
    product = jnp.einsum(subscripts, one_hot, values.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return product.astype(values.dtype)


# --- what a CPU skips: images that no operation changes, and steps that no image needs
#
# With `mc`, half of the images stay as they are, and each of the remaining ones needs one of three steps. So a CPU
# sorts a batch by operation, works block by block, and takes only the steps that an image of the block needs. A GPU or
# TPU would wait for loops and conditions that depend on random draws, so it takes all steps for all images.

BLOCK = 16  # images


def changed(
    change: Callable[..., Array], ranking: Sequence[str], variant: Variant, planes: Array, op: Array, *others: Array
) -> Array:
    """Applies its operation to every image; on a CPU only to the images that an operation changes, in blocks.

    Args:
      change: (planes, op, *others), each with any length of the leading axis -> the images after their operations.
      ranking: the names of the operations, ordered so that those with the same steps are adjacent, Identity last.
      variant: the RandAugment variant.
      planes: [B, C, H, W] uint8.
      op: [B] int32, index into variant.operations.
      *others: further arguments of `change` [B, ...].
    """
    if not _skips():
        return change(planes, op, *others)

    @as_one_batch  # the loops of several batches under vmap would all be as long as the longest
    def result(planes: Array, op: Array, *others: Array) -> Array:
        same = is_one_of(op, ('Identity',), variant)
        ranks = jnp.asarray([ranking.index(name) for name in variant.operations])
        order, at_once = jnp.argsort(ranks[op]), min(BLOCK, len(op))

        def block(i: Array, result: Array) -> Array:
            rows = lax.dynamic_slice(order, (i * at_once,), (at_once,))  # the last block may begin in the one before
            new = change(*(x[rows] for x in (planes, op, *others)))
            return result.at[rows].set(new, unique_indices=True)

        return lax.fori_loop(0, -(-jnp.sum(~same) // at_once), block, planes)

    return result(planes, op, *others)


def if_any(needed: Array, step: Callable[[], Tree], skipped: Callable[[], Tree]) -> Tree:
    """Takes a step if any image needs it.

    Args:
      needed: [B] bool.
      step: the step.
      skipped: replaces the step, with the same result if no image needs it.
    """
    return lax.cond(jnp.any(needed), step, skipped) if _skips() else step()


def is_one_of(op: Array, names: Collection[str], variant: Variant) -> Array:
    """Returns whether the operations `op` are among `names`: bool of the shape of `op`."""
    return jnp.asarray(np.isin(variant.operations, tuple(names)))[op]


def _skips() -> bool:
    return machine.platform() == 'cpu'
