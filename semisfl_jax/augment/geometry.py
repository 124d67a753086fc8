"""Operations that move or cover pixels: flip and crop, affine maps, interpolating shears, cutouts.

Planes are [B, C, H, W] uint8, and every image of a batch has its own parameters. See `operations`.
"""

import jax.numpy as jnp
from jax import lax

from semisfl_jax.augment import lookups, tables
from semisfl_jax.augment.variants import SHEARS, Variant
from semisfl_jax.core.types import Array

MOVES = ('Rotate', *SHEARS, 'TranslateX', 'TranslateY')
GRAY = 127  # fill value of the cutout


def flip_crop(planes: Array, flip: Array, top: Array, left: Array, pad: tuple[int, int]) -> Array:
    """Flips images, pads them by reflection without repeating the edge, and crops them to their old size.

    Args:
      planes: [B, C, H, W].
      flip: [B] bool, which images to flip horizontally.
      top: [B] int32 in 0 .. 2 pad, the crop's first row in the padded image.
      left: [B] int32 in 0 .. 2 pad, the crop's first column.
      pad: rows and columns added at each side, fewer than H and W.
    """
    height, width = planes.shape[2:]
    y = jnp.abs(top[:, None] - pad[0] + jnp.arange(height))
    x = jnp.abs(left[:, None] - pad[1] + jnp.arange(width))
    y = height - 1 - jnp.abs(height - 1 - y)
    x = width - 1 - jnp.abs(width - 1 - x)
    x = jnp.where(flip[:, None], width - 1 - x, x)
    return gather(planes, y[:, :, None], x[:, None, :])


def cutout(planes: Array, center: Array, size: int) -> Array:
    """Fills a square with `size + 1` pixels per side with gray 127, because PIL's rectangle includes both ends.

    At the top and left borders the square is moved to start at 0; at the bottom and right borders it is clipped.

    Args:
      planes: [B, C, H, W].
      center: [B, 2] float32, y in [0, H) and x in [0, W).
      size: nominal side in pixels.
    """
    first = jnp.maximum(center - size / 2, 0.0).astype(jnp.int32)[:, :, None]  # [B, 2, 1]
    y, x = jnp.arange(planes.shape[2]), jnp.arange(planes.shape[3])
    rows = (y >= first[:, 0]) & (y <= first[:, 0] + size)
    columns = (x >= first[:, 1]) & (x <= first[:, 1] + size)
    return jnp.where(rows[:, None, :, None] & columns[:, None, None, :], jnp.uint8(GRAY), planes)


def clipped_cutout(planes: Array, center: Array, size: int, color: tuple[int, ...]) -> Array:
    """Fills a square around a pixel with a color, clipped at all borders: the cutout of google-research/fixmatch.

    Args:
      planes: [B, C, H, W].
      center: [B, 2] float32, rounded down to row and column of the first pixel after the middle.
      size: rows and columns of the square, even.
      color: C values.
    """
    center = center.astype(jnp.int32)
    offsets = [jnp.arange(side) - center[:, i, None] for i, side in enumerate(planes.shape[2:])]
    rows, columns = ((x >= -(size // 2)) & (x < size // 2) for x in offsets)
    return jnp.where(rows[:, None, :, None] & columns[:, None, None, :], as_plane(color), planes)


# By what happens to a square at the border: planes, center, size, color, which is gray if moved
CUTOUTS = {'moved': lambda planes, center, size, _: cutout(planes, center, size), 'clipped': clipped_cutout}


def as_plane(color: tuple[int, ...]) -> Array:
    """Returns a color as an array [C, 1, 1] uint8, which broadcasts over planes [B, C, H, W]."""
    return jnp.array(color, jnp.uint8)[:, None, None]


def affine(planes: Array, op: Array, v: Array, negative: Array, variant: Variant) -> Array:
    """Rotates, shears and translates to the nearest pixel; other operations leave the image unchanged.

    Args:
      planes: [B, C, H, W].
      op: [B] int32, index into variant.operations.
      v: [B] int32, the level.
      negative: [B] int32, 0 for sign 1 and 1 for sign -1.
      variant: the RandAugment variant.
    """
    return gather(planes, *_nearest(planes.shape, op, v, negative, variant), _fill(op, variant))


def bicubic(planes: Array, op: Array, v: Array, negative: Array, variant: Variant) -> Array:
    """Moves pixels like `affine`, but shears read four neighbors with Pillow's cubic (a = -1).

    Computed in integers, so the result is the exact value, truncated. Pillow's doubles miss the exact value by 1e-13,
    so if it is an integer, their result is sometimes one lower: at fewer than 1 pixel in 200 of a sheared image.

    Args:
      planes: [B, C, H, W].
      op: [B] int32, index into variant.operations.
      v: [B] int32, the level.
      negative: [B] int32, 0 for sign 1 and 1 for sign -1.
      variant: the RandAugment variant.
    """
    *taps, k = neighbors(4, planes, op, v, negative, variant)
    v1, v2, v3, v4 = (tap.astype(jnp.int32) for tap in taps)
    k, n = k[:, None], tables.BICUBIC_STEPS
    third = n * (2 * (v1 - v2) + v3 - v4) + k * (v2 - v1 - v3 + v4)
    total = n**3 * v2 + k * (n**2 * (v3 - v1) + k * third)  # at most 4e8
    return jnp.clip(lax.div(total, n**3), 0, 255).astype(jnp.uint8)


def _nearest(shape: tuple[int, ...], op: Array, v: Array, negative: Array, variant: Variant) -> tuple[Array, Array]:
    """Returns rows and columns [B, H, W] int32 that affine maps read, possibly outside the image."""
    height, width = shape[2:]
    rows = jnp.asarray(tables.affine(variant, height, width))[op, v, negative]  # [B, 6]
    a, b, c, d, e, f = (rows[:, i, None, None] for i in range(6))
    x, y = jnp.arange(width), jnp.arange(height)[:, None]
    return (d * x + e * y + f) >> 16, (a * x + b * y + c) >> 16


def neighbors(count: int, planes: Array, op: Array, v: Array, negative: Array, variant: Variant) -> tuple[Array, ...]:
    """Moves pixels like `affine`, but shears read several neighbors along their axis.

    Args:
      count: the number of neighbors.
      planes: [B, C, H, W].
      op: [B] int32, index into variant.operations.
      v: [B] int32, the level.
      negative: [B] int32, 0 for sign 1 and 1 for sign -1.
      variant: the RandAugment variant.

    Returns:
      `count` arrays [B, C, H, W] uint8, identical for operations that are no shears; and tables.Shears.weight [B, H, W]
      int32, which says how to mix them.
    """
    height, width = planes.shape[2:]
    shears = tables.shears(variant, height, width)
    index = jnp.asarray(shears.which)[op, v, negative]
    first, weight = jnp.asarray(shears.first)[index], jnp.asarray(shears.weight)[index]
    y, x = _nearest(planes.shape, op, v, negative, variant)
    along_y, along_x = ((op == variant.place(name))[:, None, None] for name in ('ShearY', 'ShearX'))
    last = jnp.where(along_x, width - 1, height - 1)
    pixels = []
    for i in range(count):
        at = jnp.where(first == tables.OUTSIDE, -1, jnp.clip(first + i, 0, last))
        coordinates = jnp.where(along_y, at, y), jnp.where(along_x, at, x)
        pixels.append(gather(planes, *coordinates, _fill(op, variant)))
    return *pixels, weight


def _fill(op: Array, variant: Variant) -> Array | int:
    """Returns the fill value for pixels from outside the image, broadcastable to planes."""
    if not variant.fill_rotate:
        return 0
    return jnp.where(op == variant.place('Rotate'), jnp.uint8(variant.fill_rotate), 0)[:, None, None, None]


def gather(planes: Array, y: Array, x: Array, fill: Array | int = 0) -> Array:
    """Reads pixels of planes.

    Args:
      planes: [B, C, H, W].
      y: rows, broadcastable to [B, H, W].
      x: columns, broadcastable to [B, H, W].
      fill: the value of pixels outside the image.
    """
    batch, channels, _, width = planes.shape
    inside = _inside(y, x, planes.shape)
    index = jnp.where(inside, y * width + x, 0).reshape(batch, -1)
    pixels = lookups.pixels(planes.reshape(batch, channels, -1), index)
    return jnp.where(inside[:, None], pixels.reshape(planes.shape), fill)


# --- scaling and rotation about the center
#
# Every image has its `scale` and `angle`, both [B] float32. Coordinates are integers in units of 2^-16 pixels, so only
# an image's few factors are rounded. In all three functions, a pixel of the result counts as outside if its nearest
# source pixel lies outside the image. With scales from 1/4 to 4 and images of up to 4,096 pixels, coordinates fit in
# 32 bits.

UNKNOWN = 255  # fills maps outside the image, and is not a label
_ONE = 1 << 16


def scale_rotate(planes: Array, scale: Array, angle: Array) -> Array:
    """Scales and rotates images: bilinear, with weights in steps of 1/256, rounded; pixels from outside are black.

    Args:
      planes: [B, C, H, W].
      scale: [B] float32, above 1 enlarges.
      angle: [B] float32, in degrees, counterclockwise.
    """
    y, x = _locate(1 / scale, angle, planes.shape)
    height, width = planes.shape[2:]
    inside = _inside(_nearest_pixel(y), _nearest_pixel(x), planes.shape)
    y_shares, x_shares = ((256 - share, share) for share in ((at >> 8) & 255 for at in (y, x)))  # before, after
    total = jnp.zeros(planes.shape, jnp.int32)
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = jnp.clip((y >> 16) + dy, 0, height - 1), jnp.clip((x >> 16) + dx, 0, width - 1)
            weight = (y_shares[dy] * x_shares[dx])[:, None]
            total += weight * gather(planes, row, column).astype(jnp.int32)
    return jnp.where(inside[:, None], total + (_ONE >> 1) >> 16, 0).astype(jnp.uint8)


def scale_rotate_labels(planes: Array, scale: Array, angle: Array) -> Array:
    """Scales and rotates maps of labels: every pixel takes its nearest source pixel, or UNKNOWN from outside.

    Args:
      planes: [B, C, H, W].
      scale: [B] float32, above 1 enlarges.
      angle: [B] float32, in degrees, counterclockwise.
    """
    y, x = _locate(1 / scale, angle, planes.shape)
    return gather(planes, _nearest_pixel(y), _nearest_pixel(x), jnp.uint8(UNKNOWN))


def scale_rotate_points(planes: Array, scale: Array, angle: Array) -> Array:
    """Scales and rotates maps of points: pixels that are neither 0 nor UNKNOWN move one by one.

    So no point that stays in the image is lost or duplicated. If points meet in one pixel, the highest label stays. The
    remaining pixels are those of `scale_rotate_labels`, 0 or UNKNOWN.

    Args:
      planes: [B, C, H, W].
      scale: [B] float32, above 1 enlarges.
      angle: [B] float32, in degrees, counterclockwise.
    """
    batch, channels, height, width = planes.shape
    unknown = scale_rotate_labels(jnp.where(planes == UNKNOWN, planes, 0), scale, angle)
    y, x = (_nearest_pixel(at) for at in _locate(scale, -angle, planes.shape))
    marked = jnp.where(planes == UNKNOWN, 0, planes).reshape(batch, channels, -1)
    place = jnp.where(_inside(y, x, planes.shape), y * width + x, height * width)  # pixels outside are dropped
    rows, channel = jnp.arange(batch)[:, None, None], jnp.arange(channels)[:, None]
    moved = jnp.zeros_like(marked).at[rows, channel, place.reshape(batch, 1, -1)].max(marked, mode='drop')
    moved = moved.reshape(planes.shape)
    return jnp.where(moved > 0, moved, unknown)


def _locate(factor: Array, angle: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns rows and columns [B, H, W] int32, in units of 2^-16 pixels, of pixels after a clockwise turn by `angle`.

    Distances from the center are multiplied by `factor`. They are counted in half pixels, which makes them integers.
    """
    height, width = shape[2:]
    radians = jnp.deg2rad(angle)
    along = jnp.round(factor * jnp.cos(radians) * _ONE).astype(jnp.int32)[:, None, None]
    across = jnp.round(factor * jnp.sin(radians) * _ONE).astype(jnp.int32)[:, None, None]
    y, x = 2 * jnp.arange(height)[:, None] - (height - 1), 2 * jnp.arange(width) - (width - 1)
    row = across * x + along * y + (height - 1) * _ONE
    column = along * x - across * y + (width - 1) * _ONE
    return row >> 1, column >> 1


def _nearest_pixel(at: Array) -> Array:
    return at + (_ONE >> 1) >> 16


def _inside(y: Array, x: Array, shape: tuple[int, ...]) -> Array:
    return (y >= 0) & (y < shape[2]) & (x >= 0) & (x < shape[3])
