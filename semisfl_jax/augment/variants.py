"""The four RandAugment variants as data: their operations, and the parameter of each operation at each strength.

`mc` is from FixMatch-pytorch (kekmodel) and the authors' code, `semifl` from SemiFL's code, `fixmatch` from
google-research/fixmatch (`rac`), `fedmatch` from FedMatch's code. All four originals are Pillow calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from semisfl_jax.core.types import Array

ENHANCERS = ('Brightness', 'Color', 'Contrast', 'Sharpness')
SHEARS = ('ShearX', 'ShearY')
FULL_STRENGTH = 10  # strength at which an operation of mc, semifl or fixmatch reaches the end of its range

Parameter = float | int | None

_COMMON = (
    'AutoContrast',
    'Brightness',
    'Color',
    'Contrast',
    'Equalize',
    'Identity',
    'Posterize',
    'Rotate',
    'Sharpness',
    'ShearX',
    'ShearY',
    'Solarize',
    'TranslateX',
    'TranslateY',
)


class Variant(NamedTuple):
    """A RandAugment variant: its operations and their parameters.

    `parameter(name, v, side, sign)` is the parameter of an operation at level v, 0 .. levels - 1, with sign 1 or -1 and
    `side` the width (TranslateY: height) in pixels. Enhancers: the blending factor. Posterize: bits kept. Rotate:
    degrees, counterclockwise. Shears: the slope. Solarize: the first inverted value. Translations: pixels. None for
    operations without a parameter.
    """

    operations: tuple[str, ...]  # the pool, all equally likely; an Identity appended after it is not drawn
    parameter: Callable[[str, int, int, int], Parameter]
    pool: int = 14  # the first so many of `operations` are drawn from
    first: int = 0  # lowest level drawn
    levels: int = 1  # levels in the tables; the highest drawn is one less
    shears: str = 'nearest'  # interpolation of the shears: 'nearest' | 'bilinear' | 'bicubic'
    fill_rotate: int = 0  # fill value of Rotate for pixels from outside; all other operations fill with black
    alpha: bool = False  # an additional channel marks pixels of the image (255) and filled ones (0)

    def place(self, name: str) -> int:
        """Index of an operation, -1 if the variant does not have it."""
        return self.operations.index(name) if name in self.operations else -1

    def number(self, name: str, v: int, side: int, sign: int) -> float:
        """`parameter`, with 0 for operations without one."""
        return self.parameter(name, v, side, sign) or 0


def _mc(name: str, v: int, side: int, sign: int) -> Parameter:
    match name:
        case 'Brightness' | 'Color' | 'Contrast' | 'Sharpness':
            return v * 0.9 / FULL_STRENGTH + 0.05
        case 'Posterize':
            return int(v * 4 / FULL_STRENGTH) + 4
        case 'Rotate':
            return sign * int(v * 30 / FULL_STRENGTH)
        case 'ShearX' | 'ShearY':
            return sign * (v * 0.3 / FULL_STRENGTH)
        case 'Solarize':
            return 256 - int(v * 256 / FULL_STRENGTH)
        case 'TranslateX' | 'TranslateY':
            return sign * int(v * 0.3 / FULL_STRENGTH * side)
    return None


def _fixmatch(name: str, v: int, side: int, sign: int) -> Parameter:
    match name:
        case 'Brightness' | 'Color' | 'Contrast' | 'Sharpness':
            return v * 1.8 / FULL_STRENGTH + 0.1
        case 'Posterize':
            return 4 - int(v * 4 / FULL_STRENGTH)
        case 'TranslateX' | 'TranslateY':
            return sign * v
    return _mc(name, v, side, sign)


def _semifl(name: str, v: int, side: int, sign: int) -> Parameter:
    match name:
        case 'Posterize':
            return 4
        case 'TranslateX' | 'TranslateY':
            return sign * 100
    return _fixmatch(name, FULL_STRENGTH, side, sign)


def _fedmatch(name: str, v: int, side: int, sign: int) -> Parameter:
    def point(end: float, start: float = 0.0) -> float:
        """Point v of ten from start to end, with the rounding of numpy.linspace."""
        return v * ((end - start) / 9) + start

    match name:
        case 'Color' | 'Sharpness':
            return 1 + point(0.9) * sign
        case 'Contrast':
            return 1 + point(0.5) * sign
        case 'Brightness':
            return 1 + point(0.3) * sign
        case 'Posterize':
            return round(point(4, 8))
        case 'Rotate':  # the only one without a sign
            return point(360)
        case 'ShearX' | 'ShearY':
            return point(0.3) * sign
        case 'Solarize':
            return point(231, 256)
        case 'TranslateX' | 'TranslateY':
            return point(0.2) * side * sign
    return None


def mc(magnitude: int) -> Variant:
    """Fourteen operations at strengths 1 .. magnitude - 1, all shears and rotations to the nearest pixel."""
    return Variant(_COMMON, _mc, first=1, levels=magnitude)


def fixmatch(magnitude: int) -> Variant:
    """The same operations with other ranges; pixels from outside stay marked, see `Variant.alpha` and CLEARS_ALPHA."""
    return Variant(_COMMON, _fixmatch, first=1, levels=magnitude, alpha=True)


CLEARS_ALPHA = ('AutoContrast', 'Equalize', 'Posterize', 'Solarize')  # convert to RGB, so filled pixels stay black


def semifl() -> Variant:
    """Fifteen operations at full strength; SemiFL's shears are bilinear, its Rotate uses the nearest pixel."""
    pool = tuple(name for name in _COMMON if name != 'Identity') + ('CutoutConst', 'Invert')
    return Variant((*pool, 'Identity'), _semifl, pool=15, shears='bilinear')


SEMIFL_CUTOUT = 40  # nominal pixels of CutoutConst


def fedmatch() -> Variant:
    """Thirteen operations, levels 0 .. 4; 'equalize' has no effect in FedMatch's file, so Identity replaces it.

    Shears are bicubic. Pillow applies the file's fill value of 128 only to Rotate.
    """
    pool = tuple(name for name in _COMMON if name != 'Equalize')
    return Variant(pool, _fedmatch, pool=13, levels=5, shears='bicubic', fill_rotate=128)


FEDMATCH_OPERATIONS = 6  # per image
FEDMATCH_LIMITS = (2, 5)  # per image, levels are drawn below a number from 2 to 5


# --- uniform numbers in [0, 1) -> the arguments of the operations


class Drawn(NamedTuple):
    """One operation per image, as arguments of operations.randaugment."""

    op: Array  # [B] int32
    v: Array  # [B] int32
    sign: Array  # [B] int32
    applied: Array  # [B] bool


def draw_placement(
    uniform: Array, shape: tuple[int, ...], flip: bool, crop: float
) -> tuple[Array, Array, Array, tuple[int, int]]:
    """The arguments of geometry.flip_crop from numbers [3, B], given the planes' shape."""
    pad = int(crop * shape[2]), int(crop * shape[3])
    mirror, top, left = uniform
    return flip & (mirror < 0.5), _choice(top, 2 * pad[0] + 1), _choice(left, 2 * pad[1] + 1), pad


def draw_similarity(uniform: Array, scale_min: float, scale_max: float, rotate: float) -> tuple[Array, Array]:
    """The arguments of geometry.scale_rotate from numbers [2, B]: scales and degrees, both [B]."""
    scale, angle = uniform
    return scale_min + (scale_max - scale_min) * scale, rotate * (2 * angle - 1)


def draw_half(uniform: Array, variant: Variant) -> Drawn:
    """An operation per image in variants mc and fixmatch from numbers [4, B]: applied with p = 0.5, at any level."""
    op, v, sign, applied = uniform
    level = variant.first + _choice(v, variant.levels - variant.first)
    return Drawn(_choice(op, variant.pool), level, _sign(sign), applied < 0.5)


def draw_uneven(uniform: Array, variant: Variant) -> Drawn:
    """An operation per image in variant semifl from numbers [4, B]: applied with a p that is uniform in [0.2, 0.8)."""
    op, sign, p, applied = uniform
    return Drawn(_choice(op, variant.pool), jnp.zeros(op.shape, jnp.int32), _sign(sign), applied < 0.2 + 0.6 * p)


def draw_limited(uniform: Array, limit: Array, variant: Variant) -> Drawn:
    """An operation per image in variant fedmatch from numbers [3, B]: always applied, below a level uniform in
    2 .. 5, from the numbers `limit` [B] that all operations of an image share."""
    op, v, sign = uniform
    lowest, highest = FEDMATCH_LIMITS
    levels = _choice(v, lowest + _choice(limit, highest - lowest + 1))
    return Drawn(_choice(op, variant.pool), levels, _sign(sign), jnp.ones(op.shape, bool))


def draw_center(uniform: Array, shape: tuple[int, ...]) -> Array:
    """Centers [B, 2] in [0, H) x [0, W) from numbers [2, B], given the planes' shape."""
    return uniform.T * jnp.array(shape[2:], jnp.float32)


def _choice(uniform: Array, count: int | Array) -> Array:
    """0 .. count - 1, equally likely, int32."""
    return (uniform * count).astype(jnp.int32)


def _sign(uniform: Array) -> Array:
    return jnp.where(uniform < 0.5, 1, -1)
