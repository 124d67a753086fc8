"""One RandAugment operation per image, with given parameters.

Images are planes here, [B, C, H, W] uint8 with C = 1 or 3, and every image of a batch has its own parameters. Nothing
branches on a parameter: each operation is a gather (`geometry`), a table of 256 values or a blend with a degenerate
image. Every image goes through one of each, or on a CPU only through those that it needs (`lookups`). Results are
bit-identical to Pillow's (tested against 13.0 on x86-64), except for FedMatch's shears, see `geometry.bicubic`.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import lax

from semisfl_jax.augment import geometry, lookups, tables
from semisfl_jax.augment.variants import CLEARS_ALPHA, SEMIFL_CUTOUT, Variant
from semisfl_jax.core.types import Array

HISTOGRAM, GRAYS = ('AutoContrast', 'Equalize'), ('Color', 'Contrast')
LOOKS = (*HISTOGRAM, *GRAYS, 'Sharpness')


def point_tables(planes: Array, op: Array, v: Array, variant: Variant) -> Array:
    """Builds the tables of AutoContrast, Equalize, Invert, Posterize and Solarize; other operations have the identity.

    Args:
      planes: [B, C, H, W] uint8.
      op: [B] int32, index into variant.operations.
      v: [B] int32, the level.
      variant: the RandAugment variant.

    Returns:
      The tables [B, C, 256] uint8.
    """
    table = jnp.asarray(tables.points(variant))[op, v]  # [B, 256]
    table = jnp.broadcast_to(table[:, None], (*planes.shape[:2], 256))

    def with_histogram() -> Array:
        total = lookups.cumulative_histogram(planes.reshape(*planes.shape[:2], -1))
        stretched, equalized = (lookups.is_one_of(op, (name,), variant)[:, None, None] for name in HISTOGRAM)
        return jnp.where(stretched, _autocontrast(total), jnp.where(equalized, _equalize(total), table))

    return lookups.if_any(lookups.is_one_of(op, HISTOGRAM, variant), with_histogram, lambda: table)


def degenerates(planes: Array, op: Array, variant: Variant) -> Array:
    """Computes the images with which Brightness, Color, Contrast and Sharpness blend.

    They are black, the gray image, its mean, and a blur; black for all other operations.

    Args:
      planes: [B, C, H, W] uint8.
      op: [B] int32, index into variant.operations.
      variant: the RandAugment variant.
    """
    color, contrast, sharpness = (
        lookups.is_one_of(op, (name,), variant)[:, None, None, None] for name in (*GRAYS, 'Sharpness')
    )

    def gray() -> Array:
        luma = _luma(planes)
        pixels = luma[0].size
        mean = (2 * jnp.sum(luma, axis=(1, 2, 3), dtype=jnp.int32) + pixels) // (2 * pixels)  # rounded half up
        level = mean.astype(jnp.uint8)[:, None, None, None]
        return jnp.broadcast_to(jnp.where(color, luma, jnp.where(contrast, level, 0)), planes.shape)

    black = jnp.zeros_like(planes)
    grays = lookups.if_any(color | contrast, gray, lambda: black)
    return jnp.where(sharpness, lookups.if_any(sharpness, lambda: _smooth(planes), lambda: black), grays)


def _quotient(numerator: Array, denominator: Array) -> Array:
    """Computes the floor of a quotient of non-negative int32, exact where it is at most a few hundred.

    Single-precision division is many times faster than integer division. The added half keeps the quotient at least 0.5
    / denominator away from every integer, so that rounding cannot cross one.
    """
    return ((numerator.astype(jnp.float32) + 0.5) / denominator.astype(jnp.float32)).astype(jnp.int32)


def _autocontrast(total: Array) -> Array:
    """Computes the table of PIL.ImageOps.autocontrast, [..., 256] uint8, from cumulative counts [..., 256]."""
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
    """Computes the table of PIL.ImageOps.equalize, [..., 256] uint8, from cumulative counts [..., 256]."""
    values = jnp.arange(256)
    below = jnp.concatenate([jnp.zeros_like(total[..., :1]), total[..., :-1]], axis=-1)
    below_highest = jnp.max(jnp.where(total < total[..., -1:], total, 0), axis=-1, keepdims=True)
    step = lax.div(below_highest, 255)
    spread = _quotient(lax.div(step, 2) + below, jnp.maximum(step, 1))
    return jnp.where(step > 0, jnp.minimum(spread, 255), values).astype(jnp.uint8)


def _luma(planes: Array) -> Array:
    """Computes gray values [B, 1, H, W] uint8 of planes [B, C, H, W], as PIL converts RGB to L."""
    if planes.shape[1] == 1:
        return planes
    red, green, blue = (planes[:, i : i + 1].astype(jnp.int32) for i in range(3))
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000 >> 16).astype(jnp.uint8)


def _smooth(planes: Array) -> Array:
    """Applies PIL.ImageFilter.SMOOTH to [B, C, H, W] uint8: 3x3 mean, center weight 5; border pixels are unchanged."""
    height, width = planes.shape[2:]
    wide = jnp.pad(planes, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(jnp.int32)
    rows = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[..., 1:-1, 1:-1]
    mean = lax.div(total + 6, 13).astype(jnp.uint8)  # rounded; thirteenths are never ties
    y, x = jnp.arange(height)[:, None], jnp.arange(width)
    return jnp.where((y > 0) & (y < height - 1) & (x > 0) & (x < width - 1), mean, planes)


# Operations that need the same steps are adjacent.
_RANKING = (*LOOKS, 'Brightness', 'CutoutConst', 'Invert', 'Posterize', 'Solarize', *geometry.MOVES, 'Identity')


def randaugment(
    planes: Array, op: Array, v: Array, sign: Array, applied: Array, variant: Variant, center: Array | None = None
) -> Array:
    """Applies one operation to each image.

    Args:
      planes: [B, C, H, W] uint8; with `variant.alpha` [B, C + 1, H, W], the last channel 0 or 255.
      op: [B] int32, index into variant.operations.
      v: [B] int32 in variant.first .. variant.levels - 1, the strength.
      sign: [B] int32, 1 or -1: the direction, if the operation has one.
      applied: [B] bool; False leaves an image unchanged.
      variant: the RandAugment variant.
      center: [B, 2] float32, for CutoutConst, as in `geometry.cutout`; needed only by variants that have it.
    """
    op = jnp.where(applied, op, variant.place('Identity'))
    negative = (sign < 0).astype(jnp.int32)
    others = (v, negative) if center is None else (v, negative, center)
    return lookups.changed(partial(_change, variant), _RANKING, variant, planes, op, *others)


def _change(
    variant: Variant, planes: Array, op: Array, v: Array, negative: Array, center: Array | None = None
) -> Array:
    """Does the work of `randaugment`, with Identity as `op` if not applied, and `negative` [B] int32, 1 for sign -1."""
    colors, alpha = (planes[:, :-1], planes[:, -1:]) if variant.alpha else (planes, None)

    # At most one of the three steps changes an image, so the inputs of all three can be computed from `planes`.
    table = point_tables(colors, op, v, variant)
    degenerate = degenerates(colors, op, variant)

    mixes, rows = tables.blends(variant)
    row = jnp.asarray(rows)[op, v, negative][:, None, None, None]
    moves = lookups.is_one_of(op, geometry.MOVES, variant)
    moved_alone = moves
    if variant.shears == 'bilinear':  # the far pixel blends with the near one, by tables appended to the factors'
        shears = tables.shears(variant, *planes.shape[2:])
        near, moved, mix = lookups.if_any(
            moves,
            lambda: geometry.neighbors(2, planes, op, v, negative, variant),
            lambda: (planes, planes, jnp.zeros_like(planes[:, 0], jnp.int32)),
        )
        sheared = jnp.asarray(shears.which)[op, v, negative] > 0
        moved_alone &= ~sheared
        sheared = sheared[:, None, None, None]
        degenerate = jnp.where(sheared, near, degenerate)
        row = jnp.where(sheared, len(mixes) + mix[:, None], row)
        mixes = np.concatenate([mixes, shears.mixes])
    else:
        move = geometry.bicubic if variant.shears == 'bicubic' else geometry.affine
        moved = lookups.if_any(moves, lambda: move(planes, op, v, negative, variant), lambda: planes)
    if variant.alpha:
        moved, alpha = moved[:, :-1], moved[:, -1:]
        clears = lookups.is_one_of(op, CLEARS_ALPHA, variant)
        alpha = jnp.where(clears[:, None, None, None], jnp.uint8(255), alpha)

    if lookups.by_products() and variant.shears != 'bilinear':  # whose rows differ from pixel to pixel
        result = _by_differences(row, degenerate, moved, table, variant)
    else:
        result = lookups.if_any(~moved_alone, lambda: _by_tables(row, degenerate, moved, table, mixes), lambda: moved)
    if 'CutoutConst' in variant.operations:
        assert center is not None
        cut = (op == variant.place('CutoutConst'))[:, None, None, None]
        result = jnp.where(cut, geometry.cutout(result, center, SEMIFL_CUTOUT), result)
    return result if alpha is None else jnp.concatenate([result, alpha], axis=1)


def _by_tables(row: Array, degenerate: Array, image: Array, table: Array, mixes: np.ndarray) -> Array:
    """Returns the entry that `table` [B, C, 256] uint8 has for each value of `image`, blended with `degenerate`.

    `row` [B, 1, 1, 1] or for every pixel, int32: index into `mixes` [rows, 256, 256] uint8, where a value blends with
    another one.
    """
    values = image.reshape(*image.shape[:2], -1).astype(jnp.int32)
    mapped = lookups.table(values, table).reshape(image.shape)
    index = (row * 256 + degenerate) * 256 + mapped
    return jnp.asarray(mixes).reshape(-1).at[index].get(mode='promise_in_bounds')


def _by_differences(row: Array, degenerate: Array, image: Array, table: Array, variant: Variant) -> Array:
    """Applies tables and blends in one step: tables are for differences from 0.

    `row` [B, 1, 1, 1] int32 is one of `tables.blends`; images whose row is not 0 have the identity as their table.
    """
    steps, lifted = tables.differences(variant)
    blends = row > 0
    degenerate = jnp.where(blends, degenerate, 0).astype(jnp.int32)
    place = image.astype(jnp.int32) - degenerate + 255
    entries = jnp.pad(table.astype(jnp.int16), ((0, 0), (0, 0), (255, 0)))
    entries = jnp.where(blends[..., 0], jnp.asarray(steps)[row[..., 0, 0]], entries)  # [B, C, 511]
    step = lookups.table(place.reshape(*table.shape[:2], -1), entries).reshape(place.shape).astype(jnp.int32)
    for blend_row, at, first in lifted:
        step += (row == blend_row) & (place == at) & (degenerate >= first)
    return jnp.clip(degenerate + step, 0, 255).astype(jnp.uint8)
