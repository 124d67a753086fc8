"""Reading and counting of single values, uint8: gathers and scatters, on TPUs products with one-hot rows.

A TPU gathers and scatters element by element, in programs that take its compiler most of a round's minutes; what it is
made for are products. They are exact: a single term of each sum is not zero, and bfloat16 holds all integers to 256.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from semisfl_jax.core import machine
from semisfl_jax.core.types import Array, Tree

MOST_POSITIONS = 64 * 64  # of images that are read by products, whose work grows with the square


def pixels(planes: Array, index: Array) -> Array:
    """Pixels of planes [B, C, S] uint8 at positions [B, T] int32 in 0 .. S - 1, the same in all channels: [B, C, T]."""
    if by_products() and planes.shape[2] <= MOST_POSITIONS:
        return _exact('bts,bcs->bct', _one_hot(index, planes.shape[2]), planes)
    return jnp.take_along_axis(planes, index[:, None], axis=2, mode='promise_in_bounds')


def table(values: Array, entries: Array) -> Array:
    """Entries [B, C, N] of tables, integers of -256 .. 256, for values [B, C, S] int32 in 0 .. N - 1: [B, C, S]."""
    if by_products():
        return _exact('bcsn,bcn->bcs', _one_hot(values, entries.shape[2]), entries)
    return jnp.take_along_axis(entries, values, axis=2, mode='promise_in_bounds')


def cumulative_histogram(values: Array) -> Array:
    """How many values [B, C, S] uint8 are at most 0 .. 255: [B, C, 256] int32."""
    if by_products():
        return jnp.sum(values[..., None] <= jnp.arange(256, dtype=jnp.uint8), axis=2, dtype=jnp.int32)
    return jnp.cumsum(_histogram(values), axis=-1)


def as_one_batch(function: Callable[..., Tree]) -> Callable[..., Tree]:
    """Makes vmap of a function of batches call it once, on a single longer batch.

    `function` maps arrays [B, ...] to a tree of arrays [B, ...]. Under vmap over V such batches it gets arrays
    [V * B, ...], instead of an extra axis.
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
    """Counts [B, C, 256] int32 of values [B, C, S] uint8."""
    batch, channels, _ = values.shape
    start = 256 * jnp.arange(batch * channels).reshape(batch, channels, 1)
    counts = jnp.zeros(batch * channels * 256, jnp.int32)
    counts = counts.at[(start + values).reshape(-1)].add(1, mode='promise_in_bounds')
    return counts.reshape(batch, channels, 256)


def by_products() -> bool:
    """Whether programs are written for a TPU."""
    return machine.platform() == 'tpu'


def _one_hot(index: Array, size: int) -> Array:
    return (index[..., None] == jnp.arange(size)).astype(jnp.bfloat16)


def _exact(subscripts: str, one_hot: Array, values: Array) -> Array:
    """The product of one-hot rows and integers of -256 .. 256, of their type."""
    product = jnp.einsum(subscripts, one_hot, values.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return product.astype(values.dtype)
