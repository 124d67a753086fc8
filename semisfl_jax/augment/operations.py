"""Image operations with their parameters given: flip and crop, the fourteen of RandAugment, cutout.

Images are planes here, [B, C, H, W] uint8 with C = 1 or 3, and every image of a batch has its own parameters. Nothing
branches on a parameter: each operation is an affine gather, a table of 256 values or a blend with a degenerate image,
and every image goes through one of each. Results equal Pillow's bit by bit (tested against 13.0 on x86-64).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from semisfl_jax.augment import tables
from semisfl_jax.augment.tables import INDEX
from semisfl_jax.types import Array

GREY = 127  # fill of the cutout


def flip_crop(planes: Array, flip: Array, top: Array, left: Array, pad: tuple[int, int]) -> Array:
    """Mirrors left and right where asked, pads by reflection without repeating the edge, crops to the same size.

    Args:
      planes: [B, C, H, W] uint8.
      flip: [B] bool.
      top: [B] int32 in 0 .. 2 pad[0], the crop's first row in the padded image.
      left: [B] int32 in 0 .. 2 pad[1], its first column.
      pad: rows and columns added at each side, smaller than H and W.

    Returns:
      [B, C, H, W] uint8.
    """
    height, width = planes.shape[2:]
    y = jnp.abs(top[:, None] - pad[0] + jnp.arange(height))
    x = jnp.abs(left[:, None] - pad[1] + jnp.arange(width))
    y = height - 1 - jnp.abs(height - 1 - y)
    x = width - 1 - jnp.abs(width - 1 - x)
    x = jnp.where(flip[:, None], width - 1 - x, x)
    return _gather(planes, y[:, :, None], x[:, None, :])


def randaugment(planes: Array, op: Array, v: Array, sign: Array, applied: Array, magnitude: int) -> Array:
    """One operation per image.

    Args:
      planes: [B, C, H, W] uint8.
      op: [B] int32, index into tables.OPERATIONS.
      v: [B] int32 in 1 .. magnitude - 1, strength.
      sign: [B] int32, 1 or -1: direction of Rotate, the shears and the translations.
      applied: [B] bool; images where it is False stay as they are.
      magnitude: the m of RandAugment.

    Returns:
      [B, C, H, W] uint8.
    """
    batch, channels, height, width = planes.shape
    op = jnp.where(applied, op, INDEX['Identity'])

    # Of the three steps at most one changes an image, so what the other two need can be read from `planes`. In a loop
    # over halves of the batch, because XLA on the CPU would otherwise fuse all this into the gathers that read it, and
    # compute it afresh for every pixel; it heeds no optimization_barrier.
    def of_image(args):
        return _table_and_degenerate(*args, magnitude)

    counts = _histogram(planes.reshape(batch, channels, height * width))
    table, degenerate = lax.map(of_image, (planes, counts, op, v), batch_size=max(batch // 2, 1))

    moved = _affine(planes, op, v, sign, magnitude)
    values = moved.reshape(batch, channels, height * width).astype(jnp.int32)
    mapped = jnp.take_along_axis(table, values, axis=2, mode='promise_in_bounds').reshape(planes.shape)
    enhances = jnp.asarray(np.isin(tables.OPERATIONS, tables.ENHANCERS))[op]
    row = jnp.where(enhances, v, 0)[:, None, None, None]
    index = (row * 256 + degenerate) * 256 + mapped
    return jnp.asarray(tables.blends(magnitude)).reshape(-1).at[index].get(mode='promise_in_bounds')


def cutout(planes: Array, centre: Array, size: int) -> Array:
    """Fills a square of `size + 1` pixels a side with grey 127, both ends of PIL's rectangle being included.

    At the low borders the square starts at 0 and keeps its side; at the high borders it is cut.

    Args:
      planes: [B, C, H, W] uint8.
      centre: [B, 2] float32, y in [0, H) and x in [0, W).
      size: nominal side in pixels.

    Returns:
      [B, C, H, W] uint8.
    """
    first = jnp.maximum(centre - size / 2, 0.0).astype(jnp.int32)[:, :, None]  # [B, 2, 1]
    y, x = jnp.arange(planes.shape[2]), jnp.arange(planes.shape[3])
    rows = (y >= first[:, 0]) & (y <= first[:, 0] + size)
    columns = (x >= first[:, 1]) & (x <= first[:, 1] + size)
    return jnp.where(rows[:, None, :, None] & columns[:, None, None, :], jnp.uint8(GREY), planes)


def _gather(planes: Array, y: Array, x: Array) -> Array:
    """Pixels (y, x), each broadcastable to [B, H, W], of planes [B, C, H, W]; black outside."""
    batch, channels, height, width = planes.shape
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    index = jnp.where(inside, y * width + x, 0).reshape(batch, 1, -1)
    pixels = jnp.take_along_axis(planes.reshape(batch, channels, -1), index, axis=2, mode='promise_in_bounds')
    return jnp.where(inside[:, None], pixels.reshape(planes.shape), 0)


def _affine(planes: Array, op: Array, v: Array, sign: Array, magnitude: int) -> Array:
    """Rotate, ShearX, ShearY, TranslateX, TranslateY: nearest neighbour, black outside."""
    height, width = planes.shape[2:]
    rows = jnp.asarray(tables.affine(magnitude, height, width))[op, v, (sign < 0).astype(jnp.int32)]  # [B, 6]
    a, b, c, d, e, f = (rows[:, i, None, None] for i in range(6))
    x, y = jnp.arange(width), jnp.arange(height)[:, None]
    return _gather(planes, (d * x + e * y + f) >> 16, (a * x + b * y + c) >> 16)


def _table_and_degenerate(planes: Array, counts: Array, op: Array, v: Array, magnitude: int) -> tuple[Array, Array]:
    """What the nine operations that move nothing need to know of one image.

    Args:
      planes: [C, H, W] uint8.
      counts: [C, 256] int32, its histograms.
      op: [] int32.
      v: [] int32.
      magnitude: the m of RandAugment.

    Returns:
      The table of AutoContrast, Equalize, Posterize or Solarize, [C, 256] uint8, else the identity; and the image that
      Brightness, Color, Contrast or Sharpness blends with, [C, H, W] uint8: black, the grey image, its mean, the
      smoothed image.
    """
    total = jnp.cumsum(counts, axis=1)
    table = jnp.asarray(tables.points(magnitude))[op, v]  # [256]
    table = jnp.where(op == INDEX['AutoContrast'], _autocontrast(total), table)
    table = jnp.where(op == INDEX['Equalize'], _equalize(total), table)

    luma = _luma(planes)
    mean = (2 * jnp.sum(luma, dtype=jnp.int32) + luma.size) // (2 * luma.size)  # rounded half up
    level = jnp.where(op == INDEX['Contrast'], mean, 0).astype(jnp.uint8)
    degenerate = jnp.where(op == INDEX['Sharpness'], _smooth(planes), level)
    return table, jnp.where(op == INDEX['Color'], luma, degenerate)


@jax.custom_batching.custom_vmap
def _histogram(values: Array) -> Array:
    """Counts [B, C, 256] int32 of values [B, C, S] uint8."""
    batch, channels, _ = values.shape
    start = 256 * jnp.arange(batch * channels).reshape(batch, channels, 1)
    counts = jnp.zeros(batch * channels * 256, jnp.int32)
    counts = counts.at[(start + values).reshape(-1)].add(1, mode='promise_in_bounds')
    return counts.reshape(batch, channels, 256)


@_histogram.def_vmap
def _(axis_size, in_batched, values):
    """Under vmap one longer batch: a scatter with a batch axis takes twice as long."""
    del in_batched  # the only argument
    counts = _histogram(values.reshape(-1, *values.shape[2:]))
    return counts.reshape(axis_size, -1, *counts.shape[1:]), True


def _quotient(numerator: Array, denominator: Array) -> Array:
    """Floor of a quotient of non-negative int32, exact where it is at most a few hundred.

    A division in single precision is many times faster than one of integers. The half keeps the quotient at least
    0.5 / denominator away from every integer, so that no rounding can carry it across one.
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
    """Grey values [1, H, W] uint8 of planes [C, H, W], as PIL converts RGB to L."""
    if planes.shape[0] == 1:
        return planes
    red, green, blue = planes[:, None].astype(jnp.int32)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000 >> 16).astype(jnp.uint8)


def _smooth(planes: Array) -> Array:
    """PIL.ImageFilter.SMOOTH of [C, H, W] uint8: the 3x3 mean with the centre counted five times, border kept."""
    height, width = planes.shape[1:]
    wide = jnp.pad(planes, ((0, 0), (1, 1), (1, 1))).astype(jnp.int32)
    rows = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[:, 1:-1, 1:-1]
    mean = lax.div(total + 6, 13).astype(jnp.uint8)  # rounded; thirteenths are never ties
    y, x = jnp.arange(height)[:, None], jnp.arange(width)
    return jnp.where((y > 0) & (y < height - 1) & (x > 0) & (x < width - 1), mean, planes)
