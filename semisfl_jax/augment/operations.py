"""One RandAugment operation per image, with given parameters.

Images are planes here, [B, C, H, W] uint8 with C = 1 or 3, and every image of a batch has its own parameters. Nothing
branches on a parameter: each operation is a gather (`geometry`), a table of 256 values or a blend with a degenerate
image, and every image goes through one of each. Results are bit-identical to Pillow's (tested against 13.0 on x86-64),
except for FedMatch's shears, see `geometry.bicubic`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from semisfl_jax.augment import content, geometry, lookups, tables
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
    table, degenerate = content.tables_and_degenerates(colors, op, v, variant)

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
