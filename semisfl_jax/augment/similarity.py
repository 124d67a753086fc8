"""Scaling and rotation about the center: of images, of maps of labels, and of maps of single points.

Planes are [B, C, H, W] uint8, and every image of a batch has its own `scale` and `angle`, both [B] float32: above 1, an
image grows; degrees are counterclockwise. Coordinates are integers in units of 2^-16 pixels, so all but the few factors
of an image is exact. A pixel of the result is from outside where the nearest one to it lies outside the image, in all
three functions alike.
"""

from __future__ import annotations

import jax.numpy as jnp

from semisfl_jax.augment import geometry
from semisfl_jax.core.types import Array

SMALLEST, LARGEST = 0.25, 4.0  # scales for which coordinates in images of up to 4,096 pixels fit in 32 bits
UNKNOWN = 255  # fills maps from outside, and is not a label
_ONE = 1 << 16


def image(planes: Array, scale: Array, angle: Array) -> Array:
    """Scales and rotates images: bilinear, with weights in steps of 1/256, rounded; pixels from outside are black.

    Args:
      planes: [B, C, H, W] uint8.
      scale: [B] float32.
      angle: [B] float32, degrees counterclockwise.

    Returns:
      [B, C, H, W] uint8.
    """
    y, x = _locate(1 / scale, angle, planes.shape)
    height, width = planes.shape[2:]
    inside = _inside(_nearest(y), _nearest(x), planes.shape)
    total = jnp.zeros(planes.shape, jnp.int32)
    for dy in (0, 1):
        for dx in (0, 1):
            row, column = jnp.clip((y >> 16) + dy, 0, height - 1), jnp.clip((x >> 16) + dx, 0, width - 1)
            weight = _weight(y, dy) * _weight(x, dx)
            total += weight[:, None] * geometry.gather(planes, row, column).astype(jnp.int32)
    return jnp.where(inside[:, None], total + (_ONE >> 1) >> 16, 0).astype(jnp.uint8)


def labels(planes: Array, scale: Array, angle: Array) -> Array:
    """Scales and rotates maps of labels: every pixel takes the nearest one, or UNKNOWN from outside.

    Arguments and result have the shapes of those of `image`.
    """
    y, x = _locate(1 / scale, angle, planes.shape)
    return geometry.gather(planes, _nearest(y), _nearest(x), jnp.uint8(UNKNOWN))


def points(planes: Array, scale: Array, angle: Array) -> Array:
    """Like `labels`, but pixels that are neither 0 nor UNKNOWN (the points) are moved one by one.

    So no point that stays in the image is lost or duplicated; where several meet in one pixel, the highest label stays.
    Arguments and result have the shapes of those of `image`.
    """
    batch, channels, height, width = planes.shape
    unknown = labels(jnp.where(planes == UNKNOWN, planes, 0), scale, angle)
    y, x = (_nearest(at) for at in _locate(scale, -angle, planes.shape))
    marked = jnp.where(planes == UNKNOWN, 0, planes).reshape(batch, channels, -1)
    place = jnp.where(_inside(y, x, planes.shape), y * width + x, height * width)  # the others are dropped
    rows, channel = jnp.arange(batch)[:, None, None], jnp.arange(channels)[:, None]
    moved = jnp.zeros_like(marked).at[rows, channel, place.reshape(batch, 1, -1)].max(marked, mode='drop')
    moved = moved.reshape(planes.shape)
    return jnp.where(moved > 0, moved, unknown)


def _locate(factor: Array, angle: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Rows and columns [B, H, W] int32, in units of 2^-16 pixels, that pixels have after a clockwise turn by `angle`.

    Distances from the center are multiplied by `factor`. They are counted in half pixels, so that they are integers.
    """
    height, width = shape[2:]
    radians = jnp.deg2rad(angle)
    along = jnp.round(factor * jnp.cos(radians) * _ONE).astype(jnp.int32)[:, None, None]
    across = jnp.round(factor * jnp.sin(radians) * _ONE).astype(jnp.int32)[:, None, None]
    y, x = 2 * jnp.arange(height)[:, None] - (height - 1), 2 * jnp.arange(width) - (width - 1)
    row = across * x + along * y + (height - 1) * _ONE
    column = along * x - across * y + (width - 1) * _ONE
    return row >> 1, column >> 1


def _nearest(at: Array) -> Array:
    return at + (_ONE >> 1) >> 16


def _weight(at: Array, neighbor: int) -> Array:
    """Of the pixel before (0) and after (1) a coordinate, in 256ths."""
    share = (at >> 8) & 255
    return share if neighbor else 256 - share


def _inside(y: Array, x: Array, shape: tuple[int, ...]) -> Array:
    return (y >= 0) & (y < shape[2]) & (x >= 0) & (x < shape[3])
