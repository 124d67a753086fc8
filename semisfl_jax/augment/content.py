"""The tables and blends of operations that look at an image's content: its histogram, its gray values, its blur.

Planes are [B, C, H, W] uint8 with C = 1 or 3, as in `operations`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from semisfl_jax.augment import blocks, lookups, tables
from semisfl_jax.augment.variants import Variant
from semisfl_jax.core.types import Array

HISTOGRAM, GRAYS = ('AutoContrast', 'Equalize'), ('Color', 'Contrast')
LOOKS = (*HISTOGRAM, *GRAYS, 'Sharpness')


def tables_of(planes: Array, op: Array, v: Array, variant: Variant) -> Array:
    """The tables of AutoContrast, Equalize, Invert, Posterize and Solarize, otherwise the identity.

    Args:
      planes: [B, C, H, W] uint8.
      op: [B] int32.
      v: [B] int32.
      variant: the RandAugment variant.

    Returns:
      [B, C, 256] uint8.
    """
    table = jnp.asarray(tables.points(variant))[op, v]  # [B, 256]
    table = jnp.broadcast_to(table[:, None], (*planes.shape[:2], 256))

    def looked() -> Array:
        total = lookups.cumulative_histogram(planes.reshape(*planes.shape[:2], -1))
        stretched, equalized = (blocks.is_one_of(op, (name,), variant)[:, None, None] for name in HISTOGRAM)
        return jnp.where(stretched, _autocontrast(total), jnp.where(equalized, _equalize(total), table))

    return blocks.if_any(blocks.is_one_of(op, HISTOGRAM, variant), looked, lambda: table)


def degenerates(planes: Array, op: Array, variant: Variant) -> Array:
    """The images with which Brightness, Color, Contrast and Sharpness blend: black, the gray image, its mean, a blur.

    Args:
      planes: [B, C, H, W] uint8.
      op: [B] int32.
      variant: the RandAugment variant.

    Returns:
      [B, C, H, W] uint8, black for all other operations.
    """
    color, contrast, sharpness = (
        blocks.is_one_of(op, (name,), variant)[:, None, None, None] for name in (*GRAYS, 'Sharpness')
    )

    def gray() -> Array:
        luma = _luma(planes)
        pixels = luma[0].size
        mean = (2 * jnp.sum(luma, axis=(1, 2, 3), dtype=jnp.int32) + pixels) // (2 * pixels)  # rounded half up
        level = mean.astype(jnp.uint8)[:, None, None, None]
        return jnp.broadcast_to(jnp.where(color, luma, jnp.where(contrast, level, 0)), planes.shape)

    black = jnp.zeros_like(planes)
    grays = blocks.if_any(color | contrast, gray, lambda: black)
    return jnp.where(sharpness, blocks.if_any(sharpness, lambda: _smooth(planes), lambda: black), grays)


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
