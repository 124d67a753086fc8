"""Constant tables of a RandAugment variant, computed on the host with Pillow's arithmetic.

All parameters of the operations are discrete. NumPy computes here once what Pillow computes in double or single
precision for a parameter, and the device only looks it up. The axes of a variant's tables are its O operations, then
its V levels, then the signs 1 and -1.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from semisfl_jax.augment.variants import ENHANCERS, SHEARS, Variant

OUTSIDE = -9  # in place of a coordinate outside the image: black
BICUBIC_STEPS = 60  # FedMatch's shears move by multiples of 1/60 pixel, because slopes are multiples of 1/30


def _matrix(name: str, value: float, height: int, width: int) -> tuple[float, ...]:
    """Returns the six numbers of PIL.Image.transform(AFFINE), which maps an output position to an input position."""
    match name:
        case 'Rotate':  # as in PIL.Image.rotate, including its rounding
            angle = -math.radians(value % 360.0)
            cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
            x, y = width / 2, height / 2
            return cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y
        case 'ShearX':
            return 1, value, 0, 0, 1, 0
        case 'ShearY':
            return 1, 0, 0, value, 1, 0
        case 'TranslateX':
            return 1, 0, value, 0, 1, 0
        case 'TranslateY':
            return 1, 0, 0, 0, 1, value
    return 1, 0, 0, 0, 1, 0


@functools.cache
def affine(variant: Variant, height: int, width: int) -> np.ndarray:
    """Computes the affine maps of every operation, [O, V, 2, 6] int32 in 16.16 fixed point.

    A row (a, b, c, d, e, f) maps output pixel (x, y) to input pixel ((ax + by + c) >> 16, (dx + ey + f) >> 16), as
    affine_fixed in Pillow's Geometry.c does; the half-pixel offset of pixel centers is included in c and f. Operations
    that do not move pixels have the identity, as do interpolating shears (`shears`).
    """
    table = np.empty((len(variant.operations), variant.levels, 2, 6), np.int32)
    for i, name in enumerate(variant.operations):
        kind = 'Identity' if name in SHEARS and variant.shears != 'nearest' else name
        for v in range(variant.levels):
            for j, sign in enumerate((1, -1)):
                value = variant.parameter(name, v, height if name == 'TranslateY' else width, sign)
                a, b, c, d, e, f = _matrix(kind, value, height, width)
                row = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
                table[i, v, j] = [math.floor(number * 65536.0 + 0.5) for number in row]
    return table


class Shears(NamedTuple):
    """Read positions and mixing weights of interpolating shears."""

    which: np.ndarray  # [O, V, 2] int32, index into the R maps of the next two tables; 0, an empty map, for non-shears
    first: np.ndarray  # [R, H, W] int32, the first of 2 or 4 neighbors along the axis, before clipping, or OUTSIDE
    weight: np.ndarray  # [R, H, W] int32; bilinear: a row of `mixes`; bicubic: the fraction in BICUBIC_STEPS
    mixes: np.ndarray  # bilinear: [U, 256 near, 256 far] uint8; bicubic: none


@functools.cache
def shears(variant: Variant, height: int, width: int) -> Shears:
    """Computes the shears of an interpolating variant, like ImagingGenericTransform in Pillow's Geometry.c.

    A shear moves along one axis, so two (bilinear) or four (bicubic) neighbors matter. Pillow mixes them in doubles and
    truncates, so if the exact value is an integer, rounding errors decide. With two neighbors all cases fit into a
    table, and results equal Pillow's. With four, results are the truncated exact values (see `geometry.bicubic`).
    """
    y, x = np.mgrid[:height, :width] + 0.5
    which = np.zeros((len(variant.operations), variant.levels, 2), np.int32)
    first, past = [np.zeros((height, width), np.int32)], [np.zeros((height, width))]
    for name in SHEARS:
        for v in range(variant.levels):
            for j, sign in enumerate((1, -1)):
                slope = variant.parameter(name, v, 1, sign)
                at, size = (x + slope * y, width) if name == 'ShearX' else (slope * x + y, height)
                inside = (at >= 0) & (at < size)
                low = np.floor(at - 0.5)
                which[variant.place(name), v, j] = len(first)
                first.append(np.where(inside, low - (variant.shears == 'bicubic'), OUTSIDE).astype(np.int32))
                past.append(np.where(inside, at - 0.5 - low, 0.0))
    fractions = np.stack(past)
    if variant.shears == 'bicubic':
        steps = np.rint(BICUBIC_STEPS * fractions).astype(np.int32)
        return Shears(which, np.stack(first), steps, np.empty((0, 256, 256), np.uint8))

    distinct, weight = np.unique(fractions, return_inverse=True)
    near, far = np.arange(256.0)[:, None], np.arange(256.0)
    mixes, same = np.unique(
        [(near + (far - near) * fraction).astype(np.uint8) for fraction in distinct], axis=0, return_inverse=True
    )
    return Shears(which, np.stack(first), same.reshape(-1)[weight].reshape(fractions.shape).astype(np.int32), mixes)


@functools.cache
def points(variant: Variant) -> np.ndarray:
    """Computes the value tables of Invert, Posterize and Solarize, [O, V, 256] uint8; others have the identity."""
    values = np.arange(256)
    table = np.broadcast_to(values, (len(variant.operations), variant.levels, 256)).astype(np.uint8)
    for i, name in enumerate(variant.operations):
        for v in range(variant.levels):
            value = variant.parameter(name, v, 1, 1)
            if name == 'Invert':
                table[i, v] = 255 - values
            elif name == 'Posterize':
                table[i, v] = values & ~(2 ** (8 - int(value)) - 1)
            elif name == 'Solarize':
                table[i, v] = np.where(values < value, values, 255 - values)
    return table


@functools.cache
def blends(variant: Variant) -> tuple[np.ndarray, np.ndarray]:
    """Computes PIL.Image.blend(degenerate, image, factor) for every factor of a variant.

    Single precision with every step rounded, as in Blend.c. It is tabulated because a compiler that fuses the product
    and the sum into one instruction would get some of the results wrong.

    Returns:
      Tables [U, 256 degenerate, 256 image] uint8, where row 0 is `image`; and the row of each operation, [O, V, 2]
      int32, 0 for operations that do not blend.
    """
    drawn = [(name, v, j) for name in ENHANCERS for v in range(variant.first, variant.levels) for j in range(2)]
    factor = {case: variant.parameter(case[0], case[1], 1, 1 - 2 * case[2]) for case in drawn}
    factors = sorted(set(factor.values()) - {1.0})
    image = np.arange(256, dtype=np.int32)
    degenerate = image[:, None]
    table = np.empty((1 + len(factors), 256, 256), np.uint8)
    table[0] = image
    for row, value in enumerate(factors, 1):
        product = np.float32(value) * (image - degenerate).astype(np.float32)
        table[row] = np.clip(degenerate.astype(np.float32) + product, 0, 255)  # clips only if a factor is above 1
    rows = np.zeros((len(variant.operations), variant.levels, 2), np.int32)
    for (name, v, j), value in factor.items():
        rows[variant.place(name), v, j] = 0 if value == 1.0 else 1 + factors.index(value)
    return table, rows


@functools.cache
def differences(variant: Variant) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Computes the table of `blends` in short: the degenerate value plus a number of the difference, clipped.

    There are exceptions: single precision is coarser for larger sums, and lifts some that are just below an integer
    onto it.

    Returns:
      The numbers [U, 511] int16, by image - degenerate + 255; and the exceptions: row, image - degenerate + 255, and
      the lowest degenerate value whose number is one higher.
    """
    blended, _ = blends(variant)
    steps, lifted = np.empty((len(blended), 511), np.int16), []
    for row, table in enumerate(blended.astype(int)):
        for place in range(511):
            degenerate = np.arange(max(0, 255 - place), min(256, 511 - place))
            step = table[degenerate, degenerate + place - 255] - degenerate
            unclipped = (degenerate + step > 0) & (degenerate + step < 255)
            seen = step[unclipped] if unclipped.any() else step[np.argsort(abs(step))[-1:]]
            steps[row, place] = seen[0]
            if (higher := np.flatnonzero(seen > seen[0])).size:
                lifted.append((row, place, int(degenerate[unclipped][higher[0]])))
    return steps, lifted


@functools.cache
def autocontrast_shortfalls() -> np.ndarray:
    """Marks where PIL.ImageOps.autocontrast is one below the exact stretch, [256 lowest, 256 highest] uint32.

    Pillow stretches value i to int(i * scale + offset), in doubles: floor(255 (i - lowest) / (highest - lowest)),
    except that some exact quotients q come out as q - 1. Bit q & 31 marks them; no two exact quotients of one pair that
    differ in this share a bit.
    """
    table = np.zeros((256, 256), np.uint32)
    i = np.arange(256)
    for low in range(255):
        high = np.arange(low + 1, 256)[:, None]
        scale = 255.0 / (high - low)
        pillow = (i * scale + -low * scale).astype(np.int64)
        exact = 255 * (i - low) // (high - low)
        short = (i >= low) & (i <= high) & (pillow < exact)
        bits = np.where(short, np.uint32(1) << (exact & 31).astype(np.uint32), np.uint32(0))
        table[low, low + 1 :] = np.bitwise_or.reduce(bits, axis=1)
    return table
