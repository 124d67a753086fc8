"""Operations of the RandAugments of SemiFL, google-research's FixMatch and FedMatch against Pillow."""

import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps
import pytest

from semisfl_jax.augment import geometry, tables, variants
from tests.pillow_operations import (
    examples,
    slow_shapes,
    to_array,
    to_images,
    to_pillow,
    to_planes,
)
from tests.pillow_variants import fedmatch_operation, fixmatch_operation, randaugment, semifl_operation

SHAPES = [(8, 8, 3), (28, 28, 1), (32, 32, 3), (21, 34, 3)]
EVERY_SHAPE = slow_shapes(SHAPES)


def every_case(variant, name, shape):
    """All levels, both signs, every kind of image: result, its images, levels and signs."""
    images = examples(shape)
    levels = range(variant.first, variant.levels)
    index, v, sign = np.array([(i, v, s) for i in range(len(images)) for v in levels for s in (1, -1)]).T
    op, applied = np.full(len(v), variant.operations.index(name)), np.ones(len(v), bool)
    center = np.random.default_rng(2).uniform(0, 1, (len(v), 2)).astype(np.float32) * np.float32(shape[:2])
    planes = to_planes(images[index])
    if variant.alpha:
        planes = jnp.concatenate([planes, jnp.full_like(planes[:, :1], 255)], axis=1)
    result = to_images(randaugment(planes, op, v, sign, applied, variant, center))
    return result, images[index], v.tolist(), sign.tolist(), center.astype(float)


@pytest.mark.parametrize('shape', [*EVERY_SHAPE, pytest.param((144, 144, 3), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize('name', variants.semifl().operations)
def test_semifl_operation_equals_pillow(name, shape):
    for got, image, v, sign, center in zip(*every_case(variants.semifl(), name, shape), strict=True):
        more = [center] if name == 'CutoutConst' else []
        np.testing.assert_array_equal(got, to_array(semifl_operation(name, to_pillow(image), v, sign, *more)))


@pytest.mark.parametrize('shape', EVERY_SHAPE, ids=str)
@pytest.mark.parametrize('name', variants.fixmatch(10).operations)
def test_fixmatch_operation_equals_pillow(name, shape):
    """Transparent where pixels came in from outside, as in the original."""
    for got, image, v, sign, _ in zip(*every_case(variants.fixmatch(10), name, shape), strict=True):
        expected = np.asarray(fixmatch_operation(name, to_pillow(image).convert('RGBA'), v, sign))
        np.testing.assert_array_equal(got, expected[..., -got.shape[-1] :])


@pytest.mark.parametrize('shape', EVERY_SHAPE, ids=str)
@pytest.mark.parametrize('name', variants.fedmatch().operations)
def test_fedmatch_operation_equals_pillow(name, shape):
    """Bit by bit, but for one gray level in a few pixels of the bicubic shears (next test)."""
    different = []
    for got, image, v, sign, _ in zip(*every_case(variants.fedmatch(), name, shape), strict=True):
        expected = to_array(fedmatch_operation(name, to_pillow(image), v, sign)).astype(int)
        if name.startswith('Shear'):
            assert np.abs(got - expected).max() <= 1
            different.append((got != expected).mean())
        else:
            np.testing.assert_array_equal(got, expected, err_msg=f'v {v}, sign {sign}')
    assert np.mean(different or 0) < 0.005


@pytest.mark.parametrize('sign', [1, -1])
@pytest.mark.parametrize('v', range(5))
def test_bicubic_shear_is_the_exact_value_cut_off(v, sign):
    """In fractions of integers, pixel by pixel."""
    image = np.random.default_rng(3).integers(0, 256, (16, 16, 1), np.uint8)
    variant = variants.fedmatch()
    op = np.array([variant.operations.index('ShearX')])
    arguments = op, np.array([v]), np.array([sign]), np.ones(1, bool), variant
    got = to_images(randaugment(to_planes(image[None]), *arguments))[0, ..., 0]
    for y in range(16):
        for x in range(16):
            at = 60 * x + sign * v * (2 * y + 1)  # of pixel x, in sixtieths of a pixel
            if v and (at + 30) % 960 in (0, 959):
                continue  # on the very border, doubles decide what is inside
            if not 0 <= at + 30 < 960:
                assert got[y, x] == 0
                continue
            base, k = divmod(at, 60)
            a, b, c, d = (int(image[y, min(max(base + t, 0), 15), 0]) for t in (-1, 0, 1, 2))
            numerator = 60**3 * b + 60**2 * k * (c - a) + 60 * k**2 * (2 * (a - b) + c - d) + k**3 * (b - a - c + d)
            assert got[y, x] == min(max(numerator // 60**3, 0), 255), (x, y)


def test_clipped_cutout_equals_numpy():
    """Every center; two rows and columns fewer than Pillow's rectangles would cover."""
    centers = np.array([(y, x) for y in range(12) for x in range(10)])
    images = np.random.default_rng(4).integers(0, 256, (len(centers), 12, 10, 3), np.uint8)
    result = to_images(geometry.clipped_cutout(to_planes(images), jnp.asarray(centers), 6, (5, 60, 255)))
    for got, image, (y, x) in zip(result, images, centers, strict=True):
        expected = image.copy()
        expected[max(0, y - 3) : min(12, y + 3), max(0, x - 3) : min(10, x + 3)] = (5, 60, 255)
        np.testing.assert_array_equal(got, expected)


def test_blend_above_one_is_clipped_as_pillow_does():
    """Every pair of values, for SemiFL's 1.9 and FixMatch's 1.72."""
    image, degenerate = (PIL.Image.fromarray(array.astype(np.uint8)) for array in np.mgrid[:256, :256][::-1])
    for variant, v, factor in ((variants.semifl(), 0, 1.9), (variants.fixmatch(10), 9, 1.72)):
        mixes, rows = tables.blends(variant)
        row = rows[variant.operations.index('Color'), v, 0]
        np.testing.assert_array_equal(mixes[row], np.asarray(PIL.Image.blend(degenerate, image, factor)))
