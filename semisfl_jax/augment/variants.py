"""The four RandAugment variants as records: their operations, the parameter of each at each strength, and their draws.

`mc` is from FixMatch-pytorch (kekmodel) and the authors' code, `semifl` from SemiFL's code, `fixmatch` from
google-research/fixmatch (`rac`), `fedmatch` from FedMatch's code. All four originals are Pillow calls.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from semisfl_jax.core.types import Array

ENHANCERS = ('Brightness', 'Color', 'Contrast', 'Sharpness')
SHEARS = ('ShearX', 'ShearY')
FULL_STRENGTH = 10  # strength at which an operation of mc, semifl or fixmatch reaches the end of its range

_NAMES = 'AutoContrast Brightness Color Contrast Equalize Identity Posterize Rotate Sharpness'
_COMMON = (*_NAMES.split(), *SHEARS, 'Solarize', 'TranslateX', 'TranslateY')


class Drawn(NamedTuple):
    """One operation per image, as arguments of operations.randaugment."""

    op: Array  # [B] int32
    v: Array  # [B] int32
    sign: Array  # [B] int32
    applied: Array  # [B] bool
    center: Array | None = None  # [B, 2] float32, for CutoutConst


class Variant(NamedTuple):
    """A RandAugment variant: its operations, their parameters, and how they are drawn.

    `parameter(name, v, side, sign)` is the parameter of an operation at level v, 0 .. levels - 1, with sign 1 or -1 and
    `side` the width (TranslateY: height) in pixels. Enhancers: the blending factor. Posterize: bits kept. Rotate:
    degrees, counterclockwise. Shears: the slope. Solarize: the first inverted value. Translations: pixels. 0 for
    operations without a parameter.

    `draw(variant, uniform, shared, shape)` draws one operation per image from numbers [draws, B] in [0, 1), given
    those that all operations of an image share, [shared_draws, B], and the planes' shape.
    """

    operations: tuple[str, ...]  # the pool, all equally likely; an Identity appended after it is not drawn
    parameter: Callable[[str, int, int, int], float]
    draw: Callable[['Variant', Array, Array, tuple[int, ...]], Drawn]
    draws: int = 4
    shared_draws: int = 0
    per_image: int = 0  # operations per image; 0: as many as asked for
    pool: int = 14  # number of operations to draw from, the first ones
    first: int = 0  # lowest level drawn
    levels: int = 0  # levels in the tables; the highest drawn is one less; 0: the magnitude
    shears: str = 'nearest'  # interpolation of the shears: 'nearest' | 'bilinear' | 'bicubic'
    fill_rotate: int = 0  # Rotate's fill value for pixels from outside; all other operations fill with black
    alpha: bool = False  # an additional channel marks pixels of the image (255) and filled ones (0)
    cutout: str = ''  # after the operations, one of geometry.CUTOUTS; '': none

    def place(self, name: str) -> int:
        """Returns the index of an operation, -1 if the variant does not have it."""
        return self.operations.index(name) if name in self.operations else -1


def _mc(name: str, v: int, side: int, sign: int) -> float:
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
    return 0


def _fixmatch(name: str, v: int, side: int, sign: int) -> float:
    match name:
        case 'Brightness' | 'Color' | 'Contrast' | 'Sharpness':
            return v * 1.8 / FULL_STRENGTH + 0.1
        case 'Posterize':
            return 4 - int(v * 4 / FULL_STRENGTH)
        case 'TranslateX' | 'TranslateY':
            return sign * v
    return _mc(name, v, side, sign)


def _semifl(name: str, v: int, side: int, sign: int) -> float:
    match name:
        case 'Posterize':
            return 4
        case 'TranslateX' | 'TranslateY':
            return sign * 100
    return _fixmatch(name, FULL_STRENGTH, side, sign)


def _fedmatch(name: str, v: int, side: int, sign: int) -> float:
    def point(end: float, start: float = 0.0) -> float:
        """Returns point v of ten from start to end, with the rounding of numpy.linspace."""
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
    return 0


# --- from uniform numbers in [0, 1) to the arguments of the operations


def draw_placement(
    uniform: Array, shape: tuple[int, ...], flip: bool, crop: float
) -> tuple[Array, Array, Array, tuple[int, int]]:
    """Draws the arguments of geometry.flip_crop.

    Args:
      uniform: numbers [3, B].
      shape: that of the planes.
      flip: whether images are flipped, with p = 0.5.
      crop: padding as a share of height and width.
    """
    pad = int(crop * shape[2]), int(crop * shape[3])
    mirror, top, left = uniform
    return flip & (mirror < 0.5), _choice(top, 2 * pad[0] + 1), _choice(left, 2 * pad[1] + 1), pad


def draw_similarity(uniform: Array, scale_min: float, scale_max: float, rotate: float) -> tuple[Array, Array]:
    """Draws the arguments of geometry.scale_rotate.

    Args:
      uniform: numbers [2, B].
      scale_min: the smallest scale.
      scale_max: the largest scale.
      rotate: the largest angle in degrees, in both directions.

    Returns:
      Scales [B] and degrees [B].
    """
    scale, angle = uniform
    return scale_min + (scale_max - scale_min) * scale, rotate * (2 * angle - 1)


def draw_half(variant: Variant, uniform: Array, shared: Array, shape: tuple[int, ...]) -> Drawn:
    """Draws an operation that is applied with p = 0.5, at any level. Arguments as in `Variant`."""
    op, v, sign, applied = uniform
    level = variant.first + _choice(v, variant.levels - variant.first)
    return Drawn(_choice(op, variant.pool), level, _sign(sign), applied < 0.5)


def draw_uneven(variant: Variant, uniform: Array, shared: Array, shape: tuple[int, ...]) -> Drawn:
    """Draws an operation that is applied with a p that is uniform in [0.2, 0.8). Arguments as in `Variant`."""
    op, sign, p, applied = uniform[:4]
    v, center = jnp.zeros(op.shape, jnp.int32), draw_center(uniform[4:], shape)
    return Drawn(_choice(op, variant.pool), v, _sign(sign), applied < 0.2 + 0.6 * p, center)


def draw_limited(variant: Variant, uniform: Array, shared: Array, shape: tuple[int, ...]) -> Drawn:
    """Draws an operation that is always applied, below a level uniform in 2 .. 5. Arguments as in `Variant`."""
    (op, v, sign), (limit,), (lowest, highest) = uniform, shared, FEDMATCH_LIMITS
    level = _choice(v, lowest + _choice(limit, highest - lowest + 1))
    return Drawn(_choice(op, variant.pool), level, _sign(sign), jnp.ones(op.shape, bool))


def draw_center(uniform: Array, shape: tuple[int, ...]) -> Array:
    """Draws centers [B, 2] in [0, H) x [0, W) from numbers [2, B], given the planes' shape."""
    return uniform.T * jnp.array(shape[2:], jnp.float32)


def _choice(uniform: Array, count: int | Array) -> Array:
    """Returns 0 .. count - 1, equally likely, int32."""
    return (uniform * count).astype(jnp.int32)


def _sign(uniform: Array) -> Array:
    return jnp.where(uniform < 0.5, 1, -1)


# --- the four records

CLEARS_ALPHA = ('AutoContrast', 'Equalize', 'Posterize', 'Solarize')  # convert to RGB, so filled pixels stay black
SEMIFL_CUTOUT = 40  # nominal pixels of CutoutConst
FEDMATCH_LIMITS = (2, 5)  # per image, levels are drawn below a number from 2 to 5

# Fourteen operations at strengths 1 .. magnitude - 1, all moves to the nearest pixel
MC = Variant(_COMMON, _mc, draw_half, first=1, cutout='moved')
# The same operations with different ranges. Pixels from outside stay marked, see `Variant.alpha` and CLEARS_ALPHA.
FIXMATCH = Variant(_COMMON, _fixmatch, draw_half, first=1, alpha=True, cutout='clipped')
# Fifteen operations at full strength, bilinear shears, Rotate to the nearest pixel
SEMIFL = Variant(
    (*(name for name in _COMMON if name != 'Identity'), 'CutoutConst', 'Invert', 'Identity'),
    _semifl,
    draw_uneven,
    draws=6,
    pool=15,
    levels=1,
    shears='bilinear',
)
# Thirteen operations, levels 0 .. 4, bicubic shears. 'equalize' has no effect in FedMatch's file, so Identity replaces
# it. Pillow applies the file's fill value of 128 only to Rotate.
FEDMATCH = Variant(
    tuple(name for name in _COMMON if name != 'Equalize'),
    _fedmatch,
    draw_limited,
    draws=3,
    shared_draws=1,
    per_image=6,
    pool=13,
    levels=5,
    shears='bicubic',
    fill_rotate=128,
)
VARIANTS = {'mc': MC, 'semifl': SEMIFL, 'fixmatch': FIXMATCH, 'fedmatch': FEDMATCH}  # by `augment.randaugment`


def get(name: str, magnitude: int) -> Variant:
    """Returns the variant `name`; `magnitude` is one above its highest level, if that is not fixed."""
    variant = VARIANTS[name]
    return variant if variant.levels else variant._replace(levels=magnitude)
