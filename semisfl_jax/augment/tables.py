"""Constant tables of RandAugment, computed on the host with the arithmetic of Pillow.

Every parameter of the fourteen operations is discrete, so what Pillow computes in double or single precision for a
parameter is computed here once, with NumPy, and the device only looks it up. The pool and the parameters are those of
RandAugmentMC in kekmodel/FixMatch-pytorch; v is the drawn strength, an integer from 1 to m - 1.
"""

from __future__ import annotations

import functools
import math

import numpy as np

OPERATIONS = (
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
INDEX = {name: i for i, name in enumerate(OPERATIONS)}
ENHANCERS = ('Brightness', 'Color', 'Contrast', 'Sharpness')
FULL_STRENGTH = 10  # v at which an operation reaches the end of its range


def parameter(name: str, v: int, side: int = 1) -> float | int | None:
    """The parameter of operation `name` at strength v, without its sign.

    Args:
      name: one of OPERATIONS.
      v: strength, 0 .. FULL_STRENGTH.
      side: width for TranslateX, height for TranslateY, in pixels.

    Returns:
      Enhancers: the blending factor. Posterize: bits kept. Rotate: degrees. Shears: the slope. Solarize: the first
      inverted value. Translations: pixels. None where there is no parameter.
    """
    match name:
        case 'Brightness' | 'Color' | 'Contrast' | 'Sharpness':
            return v * 0.9 / FULL_STRENGTH + 0.05
        case 'Posterize':
            return int(v * 4 / FULL_STRENGTH) + 4
        case 'Rotate':
            return int(v * 30 / FULL_STRENGTH)
        case 'ShearX' | 'ShearY':
            return v * 0.3 / FULL_STRENGTH
        case 'Solarize':
            return 256 - int(v * 256 / FULL_STRENGTH)
        case 'TranslateX' | 'TranslateY':
            return int(v * 0.3 / FULL_STRENGTH * side)
    return None


def _matrix(name: str, value: float, height: int, width: int) -> tuple[float, ...]:
    """The six numbers of PIL.Image.transform(AFFINE), which maps an output position to an input position."""
    match name:
        case 'Rotate':  # as PIL.Image.rotate builds it, digits dropped included
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
def affine(magnitude: int, height: int, width: int) -> np.ndarray:
    """Affine maps of every operation, [14, m, 2, 6] int32 in 16.16 fixed point: row v, then sign + and -.

    A row (a, b, c, d, e, f) takes output pixel (x, y) to input pixel ((ax + by + c) >> 16, (dx + ey + f) >> 16), as
    affine_fixed in Pillow's Geometry.c does; the half pixel that leads to pixel centres is inside c and f. Operations
    that move nothing have the identity.
    """
    table = np.empty((len(OPERATIONS), magnitude, 2, 6), np.int32)
    for i, name in enumerate(OPERATIONS):
        for v in range(magnitude):
            value = parameter(name, v, height if name == 'TranslateY' else width) or 0
            for j, signed in enumerate((value, -value)):
                a, b, c, d, e, f = _matrix(name, signed, height, width)
                row = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
                table[i, v, j] = [math.floor(number * 65536.0 + 0.5) for number in row]
    return table


@functools.cache
def points(magnitude: int) -> np.ndarray:
    """What Posterize and Solarize make of a value, [14, m, 256] uint8. The identity for every other operation."""
    values = np.arange(256)
    table = np.broadcast_to(values, (len(OPERATIONS), magnitude, 256)).astype(np.uint8)
    for v in range(magnitude):
        table[INDEX['Posterize'], v] = values & ~(2 ** (8 - parameter('Posterize', v)) - 1)
        table[INDEX['Solarize'], v] = np.where(values < parameter('Solarize', v), values, 255 - values)
    return table


@functools.cache
def blends(magnitude: int) -> np.ndarray:
    """PIL.Image.blend(degenerate, image, factor) as a table [m, 256 degenerate, 256 image] uint8; row 0 is `image`.

    Single precision with every step rounded, as in Blend.c. A table, because a compiler that fuses the product and
    the sum into one instruction would get some of the results wrong.
    """
    image = np.arange(256, dtype=np.int32)
    degenerate = image[:, None]
    table = np.empty((magnitude, 256, 256), np.uint8)
    table[0] = image
    for v in range(1, magnitude):
        product = np.float32(parameter('Color', v)) * (image - degenerate).astype(np.float32)
        table[v] = degenerate.astype(np.float32) + product
    return table


@functools.cache
def autocontrast_shortfalls() -> np.ndarray:
    """Where PIL.ImageOps.autocontrast falls one short of the exact stretch, [256 lowest, 256 highest] uint32.

    Pillow stretches value i to int(i * scale + offset), in doubles: floor(255 (i - lowest) / (highest - lowest)),
    save that some exact quotients q come out as q - 1. Bit q & 31 tells so; no two exact quotients of one pair that
    disagree share a bit.
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
