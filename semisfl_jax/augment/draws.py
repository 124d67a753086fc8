"""Maps uniform numbers in [0, 1) to the arguments of the operations."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from semisfl_jax.augment import variants
from semisfl_jax.augment.variants import Variant
from semisfl_jax.core.types import Array


class Drawn(NamedTuple):
    """One operation per image, as arguments of operations.randaugment."""

    op: Array  # [B] int32
    v: Array  # [B] int32
    sign: Array  # [B] int32
    applied: Array  # [B] bool


def placement(
    uniform: Array, shape: tuple[int, ...], flip: bool, crop: float
) -> tuple[Array, Array, Array, tuple[int, int]]:
    """The arguments of geometry.flip_crop from numbers [3, B], given the planes' shape.

    Returns:
      flip [B] bool, top [B] and left [B] int32, (rows, columns) of padding.
    """
    pad = int(crop * shape[2]), int(crop * shape[3])
    mirror, top, left = uniform
    return flip & (mirror < 0.5), _choice(top, 2 * pad[0] + 1), _choice(left, 2 * pad[1] + 1), pad


def similarity(uniform: Array, scale_min: float, scale_max: float, rotate: float) -> tuple[Array, Array]:
    """The arguments of similarity.image from numbers [2, B]: scales and degrees, both [B], uniform in their ranges."""
    scale, angle = uniform
    return scale_min + (scale_max - scale_min) * scale, rotate * (2 * angle - 1)


def half(uniform: Array, variant: Variant) -> Drawn:
    """An operation per image in variants mc and fixmatch: levels equally likely, applied with p = 0.5.

    `uniform` are numbers [4, B] in [0, 1).
    """
    op, v, sign, applied = uniform
    return Drawn(_choice(op, variant.pool), _level(v, variant), _sign(sign), applied < 0.5)


def uneven(uniform: Array, variant: Variant) -> Drawn:
    """An operation per image in variant semifl: applied with a probability that is itself uniform in [0.2, 0.8).

    `uniform` are numbers [4, B] in [0, 1).
    """
    op, sign, p, applied = uniform
    return Drawn(_choice(op, variant.pool), jnp.zeros(op.shape, jnp.int32), _sign(sign), applied < 0.2 + 0.6 * p)


def limited(uniform: Array, limit: Array, variant: Variant) -> Drawn:
    """An operation per image in variant fedmatch: always applied, at levels below a limit that is uniform in 2 .. 5.

    `uniform` are numbers [3, B] in [0, 1). The limit is computed from `limit`, numbers [B] in [0, 1), which all
    operations of an image share.
    """
    op, v, sign = uniform
    lowest, highest = variants.FEDMATCH_LIMITS
    levels = _choice(v, lowest + _choice(limit, highest - lowest + 1))
    return Drawn(_choice(op, variant.pool), levels, _sign(sign), jnp.ones(op.shape, bool))


def center(uniform: Array, shape: tuple[int, ...]) -> Array:
    """Centers [B, 2] in [0, H) x [0, W) from numbers [2, B], given the planes' shape."""
    return uniform.T * jnp.array(shape[2:], jnp.float32)


def _choice(uniform: Array, count: int | Array) -> Array:
    """0 .. count - 1, equally likely, int32."""
    return (uniform * count).astype(jnp.int32)


def _level(uniform: Array, variant: Variant) -> Array:
    return variant.first + _choice(uniform, variant.levels - variant.first)


def _sign(uniform: Array) -> Array:
    return jnp.where(uniform < 0.5, 1, -1)
