"""Each operation of the four RandAugments, equal to Pillow or NumPy pixel by pixel."""

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from semisfl_jax.augment import geometry, operations, tables, variants
from tests.pillow_operations import (
    PILLOW,
    examples,
    numpy_flip_crop,
    pillow_cutout,
    to_array,
    to_images,
    to_pillow,
    to_planes,
)

randaugment = jax.jit(operations.randaugment, static_argnums=5)
VARIANT = {  # of `mc` one level more than is drawn: the end of every range
    'mc': variants.mc(11),
    'semifl': variants.semifl(),
    'fixmatch': variants.fixmatch(10),
    'fedmatch': variants.fedmatch(),
}
OPERATIONS = [(kind, name) for kind, variant in VARIANT.items() for name in variant.operations]
SHAPES = [(28, 28, 1), (21, 34, 3), *(pytest.param(s, marks=pytest.mark.slow) for s in ((8, 8, 3), (96, 96, 3)))]


@pytest.mark.parametrize('shape', SHAPES, ids=str)
@pytest.mark.parametrize(('kind', 'name'), OPERATIONS)
def test_operation_equals_pillow(kind, name, shape):
    """Every level, both signs, every kind of image. Bit by bit, but for one gray level in a few pixels of FedMatch's
    bicubic shears (next test); with FixMatch transparent where pixels came in from outside, as in the original."""
    variant, images = VARIANT[kind], examples(shape)
    levels = range(variant.first, variant.levels, 1 if shape[0] < 40 else 3)
    index, v, sign = np.array([(i, v, s) for i in range(len(images)) for v in levels for s in (1, -1)]).T
    op, applied = np.full(len(v), variant.operations.index(name)), np.ones(len(v), bool)
    center = np.random.default_rng(2).uniform(0, 1, (len(v), 2)).astype(np.float32) * np.float32(shape[:2])
    planes = to_planes(images[index])
    if variant.alpha:
        planes = jnp.concatenate([planes, jnp.full_like(planes[:, :1], 255)], axis=1)
    result = to_images(randaugment(planes, op, v, sign, applied, variant, center))
    different = [0.0]
    for got, i, level, s, place in zip(result, index, v.tolist(), sign.tolist(), center.astype(float), strict=True):
        image = to_pillow(images[i]).convert('RGBA') if variant.alpha else to_pillow(images[i])
        more = [place] if name == 'CutoutConst' else []
        expected = to_array(PILLOW[kind](name, image, level, s, *more))[..., -got.shape[-1] :]
        if kind == 'fedmatch' and name.startswith('Shear'):
            assert np.abs(got - expected.astype(int)).max() <= 1
            different.append((got != expected).mean())
        else:
            np.testing.assert_array_equal(got, expected, err_msg=f'image {i}, v {level}, sign {s}')
    assert np.mean(different) < 0.005


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


@pytest.mark.slow
def test_autocontrast_of_every_range():
    """All 32,640 pairs of lowest and highest value, every value between them."""
    low, high = np.triu_indices(256, 1)
    values = np.arange(256)
    counts = (values >= low[:, None]) & (values <= high[:, None])
    result = np.asarray(jax.jit(operations._autocontrast)(np.cumsum(counts, 1)))
    for row, lo, hi in zip(result, low, high, strict=True):
        image = PIL.Image.frombytes('L', (hi - lo + 1, 1), bytes(range(lo, hi + 1)))
        assert row[lo : hi + 1].tobytes() == PIL.ImageOps.autocontrast(image).tobytes(), (lo, hi)


def test_blend_tables_equal_pillow():
    """Every pair of values; factors above one are clipped as Pillow does."""
    image, degenerate = (PIL.Image.fromarray(array.astype(np.uint8)) for array in np.mgrid[:256, :256][::-1])
    factors = [('mc', v, float(v) * 0.9 / 10 + 0.05) for v in range(1, 11)]
    for kind, v, factor in [*factors, ('semifl', 0, 1.9), ('fixmatch', 9, 1.72)]:
        mixes, rows = tables.blends(VARIANT[kind])
        row = rows[VARIANT[kind].operations.index('Color'), v, 0]
        np.testing.assert_array_equal(mixes[row], np.asarray(PIL.Image.blend(degenerate, image, factor)))


def test_quotient_is_exact():
    """For what Equalize divides in images of up to 144 x 144 pixels, quotients up to where they are cut."""
    step = np.arange(1, 144 * 144 // 255 + 1)[:, None]
    numerator = np.arange(300)[None] * step + np.arange(100)[:, None, None] % step
    np.testing.assert_array_equal(jax.jit(operations._quotient)(numerator, step), numerator // step)


def test_flip_crop_equals_numpy():
    """Every flip and every window, paddings up to the whole side included."""
    pad = (2, 9)
    cases = [(f, t, l) for f in (0, 1) for t in range(2 * pad[0] + 1) for l in range(2 * pad[1] + 1)]
    images = np.random.default_rng(1).integers(0, 256, (len(cases), 8, 10, 3), np.uint8)
    flip, top, left = np.array(cases).T
    result = to_images(geometry.flip_crop(to_planes(images), flip == 1, top, left, pad))
    for got, image, case in zip(result, images, cases, strict=True):
        np.testing.assert_array_equal(got, numpy_flip_crop(image, *case, pad))


@pytest.mark.parametrize(('size', 'shape'), [(1, (8, 8, 1)), (5, (21, 34, 3)), (16, (32, 32, 3))], ids=str)
def test_cutout_equals_pillow(size, shape):
    height, width, _ = shape
    host = np.random.default_rng(2)
    center = host.uniform(0, 1, (60, 2)) * (height, width)
    center[:4] = [[0, 0], [0, width - 1e-3], [height - 1e-3, 0], [height - 1e-3, width - 1e-3]]
    center[4:8] = [[8, 8], [7.999, 8.001], [size / 2, size / 2 + 1], [2.5, 3]]
    center = center.astype(np.float32)
    images = host.integers(0, 256, (60, *shape), np.uint8)
    result = to_images(geometry.cutout(to_planes(images), jnp.asarray(center), size))
    for got, image, where in zip(result, images, center, strict=True):
        np.testing.assert_array_equal(got, to_array(pillow_cutout(to_pillow(image), where.astype(float), size)))


def test_clipped_cutout_equals_numpy():
    """Every center; two rows and columns fewer than Pillow's rectangles would cover."""
    centers = np.array([(y, x) for y in range(12) for x in range(10)])
    images = np.random.default_rng(4).integers(0, 256, (len(centers), 12, 10, 3), np.uint8)
    result = to_images(geometry.clipped_cutout(to_planes(images), jnp.asarray(centers), 6, (5, 60, 255)))
    for got, image, (y, x) in zip(result, images, centers, strict=True):
        expected = image.copy()
        expected[max(0, y - 3) : min(12, y + 3), max(0, x - 3) : min(10, x + 3)] = (5, 60, 255)
        np.testing.assert_array_equal(got, expected)
