"""The tables and blends of operations that look at an image's content: its histogram, its gray values, its blur.

Planes are [B, C, H, W] uint8 with C = 1 or 3, as in `operations`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from semisfl_jax import machine
from semisfl_jax.augment import lookups, tables
from semisfl_jax.augment.variants import Variant
from semisfl_jax.types import Array

LOOKS = ('AutoContrast', 'Color', 'Contrast', 'Equalize', 'Sharpness')
BLOCK = 32  # images that a CPU looks at together


def tables_and_degenerates(planes: Array, op: Array, v: Array, variant: Variant) -> tuple[Array, Array]:
    """The inputs of the operations that do not move pixels.

    Args:
      planes: [B, C, H, W] uint8.
      op: [B] int32.
      v: [B] int32.
      variant: the RandAugment variant.

    Returns:
      The table of AutoContrast, Equalize, Invert, Posterize or Solarize, [B, C, 256] uint8, otherwise the identity; and
      the image with which Brightness, Color, Contrast or Sharpness blends, [B, C, H, W] uint8: black, the gray image,
      its mean, the smoothed image.
    """
    table = jnp.asarray(tables.points(variant))[op, v]  # [B, 256]
    table = jnp.broadcast_to(table[:, None], (*planes.shape[:2], 256))
    if machine.platform() != 'cpu':  # a GPU would wait for the length of a loop that depends on draws
        return _from_content(planes, op, table, variant)
    return _where_needed(planes, op, table, variant)


def _where_needed(planes: Array, op: Array, table: Array, variant: Variant) -> tuple[Array, Array]:
    """`_from_content` of the images whose operation looks at them, block by block: with `mc` about one in six."""

    @lookups.as_one_batch  # the loops of several batches under vmap would all be as long as the longest
    def results(planes: Array, op: Array, table: Array) -> tuple[Array, Array]:
        looks = jnp.asarray(np.isin(variant.operations, LOOKS))[op]
        order, at_once = jnp.argsort(~looks), min(BLOCK, len(op))

        def block(i: Array, results: tuple[Array, Array]) -> tuple[Array, Array]:
            rows = lax.dynamic_slice(order, (i * at_once,), (at_once,))  # the last block may begin in the one before
            new = _from_content(planes[rows], op[rows], table[rows], variant)
            return jax.tree.map(lambda of_all, some: of_all.at[rows].set(some, unique_indices=True), results, new)

        return lax.fori_loop(0, -(-jnp.sum(looks) // at_once), block, (table, jnp.zeros_like(planes)))

    return results(planes, op, table)


def _from_content(planes: Array, op: Array, table: Array, variant: Variant) -> tuple[Array, Array]:
    """What `tables_and_degenerates` returns, from the tables of operations that do not look at the image.

    Args:
      planes: [B, C, H, W] uint8.
      op: [B] int32.
      table: [B, C, 256] uint8.
      variant: the RandAugment variant.

    Returns:
      [B, C, 256] uint8, [B, C, H, W] uint8.
    """

    def is_(name: str) -> Array:
        return (op == variant.place(name))[:, None, None]

    total = lookups.cumulative_histogram(planes.reshape(*planes.shape[:2], -1))
    table = jnp.where(is_('AutoContrast'), _autocontrast(total), table)
    table = jnp.where(is_('Equalize'), _equalize(total), table)

    luma = _luma(planes)
    pixels = luma[0].size
    mean = (2 * jnp.sum(luma, axis=(1, 2, 3), dtype=jnp.int32) + pixels) // (2 * pixels)  # rounded half up
    level = jnp.where(op == variant.place('Contrast'), mean, 0).astype(jnp.uint8)[:, None, None, None]
    degenerate = jnp.where(is_('Sharpness')[..., None], _smooth(planes), level)
    return table, jnp.where(is_('Color')[..., None], luma, degenerate)


def _quotient(numerator: Array, denominator: Array) -> Array:
    """Floor of a quotient of non-negative int32, exact where it is at most a few hundred.

    Single-precision division is many times faster than integer division. The added half keeps the quotient at least
    0.5 / denominator away from every integer, so that rounding cannot cross one.
    """
    return ((numerator.astype(jnp.float32) + 0.5) / denominator.astype(jnp.float32)).astype(jnp.int32)


def _autocontrast(total: Array) -> Array:
    """The table of PIL.ImageOps.autocontrast, [..., 256] uint8, from cumulative counts [..., 256]."""
    values = jnp.arange(256)
    low = jnp.sum(total == 0, axis=-1, keepdims=True)
    high = jnp.sum(total < total[..., -1:], axis=-1, keepdims=True)
    span = jnp.maximum(high - low, 1)
    distance = 255 * jnp.clip(values - low, 0, span)
    exact = _quotient(distance, span)
    short = jnp.asarray(tables.autocontrast_shortfalls())[low, high] >> (exact & 31).astype(jnp.uint32) & 1
    stretched = exact - jnp.where(exact * span == distance, short.astype(jnp.int32), 0)
    return jnp.where(high > low, stretched, values).astype(jnp.uint8)


def _equalize(total: Array) -> Array:
    """The table of PIL.ImageOps.equalize, [..., 256] uint8, from cumulative counts [..., 256]."""
    values = jnp.arange(256)
    below = jnp.concatenate([jnp.zeros_like(total[..., :1]), total[..., :-1]], axis=-1)
    below_highest = jnp.max(jnp.where(total < total[..., -1:], total, 0), axis=-1, keepdims=True)
    step = lax.div(below_highest, 255)
    spread = _quotient(lax.div(step, 2) + below, jnp.maximum(step, 1))
    return jnp.where(step > 0, jnp.minimum(spread, 255), values).astype(jnp.uint8)


def _luma(planes: Array) -> Array:
    """Gray values [B, 1, H, W] uint8 of planes [B, C, H, W], as PIL converts RGB to L."""
    if planes.shape[1] == 1:
        return planes
    red, green, blue = (planes[:, i : i + 1].astype(jnp.int32) for i in range(3))
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000 >> 16).astype(jnp.uint8)


def _smooth(planes: Array) -> Array:
    """PIL.ImageFilter.SMOOTH of [B, C, H, W] uint8: the 3x3 mean with center weight 5; border pixels are unchanged."""
    height, width = planes.shape[2:]
    wide = jnp.pad(planes, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(jnp.int32)
    rows = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[..., 1:-1, 1:-1]
    mean = lax.div(total + 6, 13).astype(jnp.uint8)  # rounded; thirteenths are never ties
    y, x = jnp.arange(height)[:, None], jnp.arange(width)
    return jnp.where((y > 0) & (y < height - 1) & (x > 0) & (x < width - 1), mean, planes)
