"""One RandAugment operation per image, with given parameters.

Images are planes here, [B, C, H, W] uint8 with C = 1 or 3, and every image of a batch has its own parameters. Nothing
branches on a parameter: each operation is a gather (`geometry`), a table of 256 values or a blend with a degenerate
image, and every image goes through one of each. Results are bit-identical to Pillow's (tested against 13.0 on x86-64),
except for FedMatch's shears, see `geometry.bicubic`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from semisfl_jax import machine
from semisfl_jax.augment import geometry, lookups, tables
from semisfl_jax.augment.variants import CLEARS_ALPHA, SEMIFL_CUTOUT, Variant
from semisfl_jax.types import Array


def randaugment(
    planes: Array, op: Array, v: Array, sign: Array, applied: Array, variant: Variant, center: Array | None = None
) -> Array:
    """One operation per image.

    Args:
      planes: [B, C, H, W] uint8; with `variant.alpha` [B, C + 1, H, W], the last channel 0 or 255.
      op: [B] int32, index into variant.operations.
      v: [B] int32 in variant.first .. variant.levels - 1, the strength.
      sign: [B] int32, 1 or -1: the direction, if the operation has one.
      applied: [B] bool; False leaves an image unchanged.
      variant: the RandAugment variant.
      center: [B, 2] float32, the center for CutoutConst, as in `geometry.cutout`; needed only by variants that have it.

    Returns:
      uint8 of the shape of `planes`.
    """
    op = jnp.where(applied, op, variant.place('Identity'))
    negative = (sign < 0).astype(jnp.int32)
    colors, alpha = (planes[:, :-1], planes[:, -1:]) if variant.alpha else (planes, None)
    batch, channels, height, width = colors.shape

    # At most one of the three steps changes an image, so the inputs of the other two can be computed from `planes`.
    def of_image(args: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        planes, total, op, v = args
        return _table_and_degenerate(planes, total, op, v, variant)

    total = lookups.cumulative_histogram(colors.reshape(batch, channels, height * width))
    # On the CPU, a loop over halves of the batch keeps XLA from fusing all this into the gathers that read it and
    # recomputing it for every pixel; optimization_barrier does not prevent that. Elsewhere it would double the kernels.
    at_once = max(batch // 2, 1) if machine.platform() == 'cpu' else batch
    table, degenerate = lax.map(of_image, (colors, total, op, v), batch_size=at_once)

    mixes, rows = tables.blends(variant)
    row = jnp.asarray(rows)[op, v, negative][:, None, None, None]
    if variant.shears == 'bilinear':  # the far pixel blends with the near one, by tables appended to the factors'
        shears = tables.shears(variant, height, width)
        near, moved, mix = geometry.bilinear(planes, op, v, negative, variant)
        sheared = jnp.asarray(shears.which)[op, v, negative][:, None, None, None] > 0
        degenerate = jnp.where(sheared, near, degenerate)
        row = jnp.where(sheared, len(mixes) + mix[:, None], row)
        mixes = np.concatenate([mixes, shears.mixes])
    elif variant.shears == 'bicubic':
        moved = geometry.bicubic(planes, op, v, negative, variant)
    else:
        moved = geometry.affine(planes, op, v, negative, variant)
    if variant.alpha:
        moved, alpha = moved[:, :-1], moved[:, -1:]
        clears = jnp.asarray(np.isin(variant.operations, CLEARS_ALPHA))[op]
        alpha = jnp.where(clears[:, None, None, None], jnp.uint8(255), alpha)

    if lookups.by_products() and variant.shears != 'bilinear':  # whose rows differ from pixel to pixel
        result = _by_differences(row, degenerate, moved, table, variant)
    else:
        values = moved.reshape(batch, channels, height * width).astype(jnp.int32)
        mapped = lookups.table(values, table).reshape(colors.shape)
        index = (row * 256 + degenerate) * 256 + mapped
        result = jnp.asarray(mixes).reshape(-1).at[index].get(mode='promise_in_bounds')
    if 'CutoutConst' in variant.operations:
        assert center is not None
        cut = (op == variant.place('CutoutConst'))[:, None, None, None]
        result = jnp.where(cut, geometry.cutout(result, center, SEMIFL_CUTOUT), result)
    return result if alpha is None else jnp.concatenate([result, alpha], axis=1)


def _table_and_degenerate(planes: Array, total: Array, op: Array, v: Array, variant: Variant) -> tuple[Array, Array]:
    """The inputs of the operations that do not move pixels, for one image.

    Args:
      planes: [C, H, W] uint8.
      total: [C, 256] int32, its cumulative histograms.
      op: [] int32.
      v: [] int32.
      variant: the RandAugment variant.

    Returns:
      The table of AutoContrast, Equalize, Invert, Posterize or Solarize, [C, 256] uint8, otherwise the identity; and
      the image with which Brightness, Color, Contrast or Sharpness blends, [C, H, W] uint8: black, the gray image, its
      mean, the smoothed image.
    """
    table = jnp.asarray(tables.points(variant))[op, v]  # [256]
    table = jnp.where(op == variant.place('AutoContrast'), _autocontrast(total), table)
    table = jnp.where(op == variant.place('Equalize'), _equalize(total), table)

    luma = _luma(planes)
    mean = (2 * jnp.sum(luma, dtype=jnp.int32) + luma.size) // (2 * luma.size)  # rounded half up
    level = jnp.where(op == variant.place('Contrast'), mean, 0).astype(jnp.uint8)
    degenerate = jnp.where(op == variant.place('Sharpness'), _smooth(planes), level)
    return table, jnp.where(op == variant.place('Color'), luma, degenerate)


def _by_differences(row: Array, degenerate: Array, image: Array, table: Array, variant: Variant) -> Array:
    """Tables and blends in one: tables are for differences from 0.

    Args:
      row: [B, 1, 1, 1] int32, of `tables.blends`; an image of another row than 0 has the identity as its table.
      degenerate: [B, C, H, W] uint8.
      image: [B, C, H, W] uint8.
      table: [B, C, 256] uint8.
      variant: the RandAugment variant.

    Returns:
      [B, C, H, W] uint8.
    """
    steps, lifted = tables.differences(variant)
    blends = row > 0
    degenerate = jnp.where(blends, degenerate, 0).astype(jnp.int32)
    place = image.astype(jnp.int32) - degenerate + 255
    entries = jnp.pad(table.astype(jnp.int16), ((0, 0), (0, 0), (255, 0)))
    entries = jnp.where(blends[..., 0], jnp.asarray(steps)[row[..., 0, 0]], entries)  # [B, C, 511]
    step = lookups.table(place.reshape(*table.shape[:2], -1), entries).reshape(place.shape).astype(jnp.int32)
    for of_row, at, first in lifted:
        step += (row == of_row) & (place == at) & (degenerate >= first)
    return jnp.clip(degenerate + step, 0, 255).astype(jnp.uint8)


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
    """Gray values [1, H, W] uint8 of planes [C, H, W], as PIL converts RGB to L."""
    if planes.shape[0] == 1:
        return planes
    red, green, blue = planes[:, None].astype(jnp.int32)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000 >> 16).astype(jnp.uint8)


def _smooth(planes: Array) -> Array:
    """PIL.ImageFilter.SMOOTH of [C, H, W] uint8: the 3x3 mean with center weight 5; border pixels are unchanged."""
    height, width = planes.shape[1:]
    wide = jnp.pad(planes, ((0, 0), (1, 1), (1, 1))).astype(jnp.int32)
    rows = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[:, 1:-1, 1:-1]
    mean = lax.div(total + 6, 13).astype(jnp.uint8)  # rounded; thirteenths are never ties
    y, x = jnp.arange(height)[:, None], jnp.arange(width)
    return jnp.where((y > 0) & (y < height - 1) & (x > 0) & (x < width - 1), mean, planes)
