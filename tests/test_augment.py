"""Each operation of the views, equal to Pillow or NumPy pixel by pixel, and the whole chain of them."""

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageEnhance
import PIL.ImageOps
import pytest

from semisfl_jax.augment import AugmentOptions, geometry, operations, strong, tables, variants, weak
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from tests.pillow_operations import (
    MAGNITUDE,
    MC,
    OFF,
    OPERATIONS,
    SHAPES,
    examples,
    numpy_flip_crop,
    pillow_cutout,
    pillow_operation,
    slow_shapes,
    to_array,
    to_images,
    to_pillow,
    to_planes,
)

randaugment = jax.jit(operations.randaugment, static_argnums=5)


@pytest.mark.parametrize('shape', slow_shapes(SHAPES), ids=str)
@pytest.mark.parametrize('name', OPERATIONS)
def test_operation_equals_pillow(name, shape):
    """Every strength, both signs, every kind of image."""
    images = examples(shape)
    strengths = (1, 6, 10) if shape[0] > 40 else range(1, MAGNITUDE)
    cases = [(i, v, sign) for i in range(len(images)) for v in strengths for sign in (1, -1)]
    index, v, sign = np.array(cases).T
    op = np.full(len(cases), OPERATIONS.index(name))
    applied = np.ones(len(cases), bool)
    result = to_images(randaugment(to_planes(images[index]), op, v, sign, applied, MC))
    for case, got in zip(cases, result, strict=True):
        i, v, sign = case
        expected = to_array(pillow_operation(name, to_pillow(images[i]), v, sign))
        np.testing.assert_array_equal(got, expected, err_msg=f'{name} of image {i}, v {v}, sign {sign}')


def test_every_operation_changes_noise():
    """Guards the comparison above against operations that do nothing at all."""
    op = np.arange(14)
    image = np.broadcast_to(examples((32, 32, 3))[1], (14, 32, 32, 3))
    v, sign = np.full(14, 9), np.ones(14, int)
    result = to_images(randaugment(to_planes(image), op, v, sign, np.ones(14, bool), MC))
    changed = (result != image).any((1, 2, 3))
    assert [name for name, yes in zip(OPERATIONS, changed, strict=True) if not yes] == ['Identity']
    unchanged = to_images(randaugment(to_planes(image), op, v, sign, np.zeros(14, bool), MC))
    np.testing.assert_array_equal(unchanged, image)


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


@pytest.mark.parametrize('v', range(1, MAGNITUDE))
def test_blend_table_equals_pillow(v):
    """Every pair of values."""
    image, degenerate = (PIL.Image.fromarray(array.astype(np.uint8)) for array in np.mgrid[:256, :256][::-1])
    expected = PIL.Image.blend(degenerate, image, float(v) * 0.9 / 10 + 0.05)
    table, rows = tables.blends(MC)
    assert (rows[OPERATIONS.index('Contrast'), v] == v).all()
    np.testing.assert_array_equal(table[v], np.asarray(expected))


def test_quotient_is_exact():
    """For what Equalize divides in images of up to 144 x 144 pixels, quotients up to where they are cut."""
    step = np.arange(1, 144 * 144 // 255 + 1)[:, None]
    numerator = np.arange(300)[None] * step + np.arange(100)[:, None, None] % step
    expected = numerator // step
    np.testing.assert_array_equal(jax.jit(operations._quotient)(numerator, step), expected)


@pytest.mark.parametrize(('height', 'width', 'channels', 'pad'), [(8, 8, 1, (1, 1)), (8, 10, 3, (2, 9))])
def test_flip_crop_equals_numpy(height, width, channels, pad):
    """Every flip and every window, paddings up to the whole side included."""
    cases = [(f, t, l) for f in (0, 1) for t in range(2 * pad[0] + 1) for l in range(2 * pad[1] + 1)]
    images = np.random.default_rng(1).integers(0, 256, (len(cases), height, width, channels), np.uint8)
    flip, top, left = np.array(cases).T
    result = to_images(geometry.flip_crop(to_planes(images), flip == 1, top, left, pad))
    for got, image, case in zip(result, images, cases, strict=True):
        np.testing.assert_array_equal(got, numpy_flip_crop(image, *case, pad))


@pytest.mark.parametrize('size', [1, 5, 16])
@pytest.mark.parametrize('shape', [(8, 8, 1), (32, 32, 3), (21, 34, 3)], ids=str)
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


@pytest.mark.parametrize('shape', [(28, 28, 1), (32, 32, 3)], ids=str)
def test_views_equal_pillow_chain(shape):
    """Whole views: the drawn numbers are read off the key, what they do is Pillow's."""
    options = AugmentOptions()
    images = np.random.default_rng(3).integers(0, 256, (48, *shape), np.uint8)
    images[::3] = examples(shape)[3]
    planes_shape = (48, shape[2], *shape[:2])
    key = rng.root(5)

    uniform = jax.random.uniform(rng.fold(key, 'strong'), (13, 48))
    placement = variants.draw_placement(uniform[:3], planes_shape, True, 0.125)
    drawn = [variants.draw_half(uniform[3 + 4 * i : 7 + 4 * i], variants.mc(10)) for i in range(2)]
    center = np.asarray(variants.draw_center(uniform[-2:], planes_shape))
    result = np.asarray(jax.jit(strong, static_argnums=2)(key, images, options))
    for b in range(48):
        flip, top, left = (int(array[b]) for array in placement[:3])
        image = to_pillow(numpy_flip_crop(images[b], flip, top, left, placement[3]))
        for op, v, sign, applied in drawn:
            if applied[b]:
                image = pillow_operation(OPERATIONS[int(op[b])], image, int(v[b]), int(sign[b]))
        expected = pillow_cutout(image, center[b].astype(float), 16)
        np.testing.assert_array_equal(result[b], to_array(expected))

    uniform = jax.random.uniform(rng.fold(key, 'weak'), (3, 48))
    *placement, pad = variants.draw_placement(uniform, planes_shape, True, 0.125)
    assert pad == (int(0.125 * shape[0]), int(0.125 * shape[1]))
    result = np.asarray(jax.jit(weak, static_argnums=2)(key, images, options))
    for b in range(48):
        expected = numpy_flip_crop(images[b], *(int(array[b]) for array in placement), pad)
        np.testing.assert_array_equal(result[b], expected)


def test_switches():
    """Each option alone does its own work, and all off do nothing."""
    images = np.random.default_rng(8).integers(0, 127, (64, 16, 16, 3), np.uint8)
    key = rng.root(0)

    def apply(view, **changes):
        return np.asarray(jax.jit(view, static_argnums=2)(key, images, OFF._replace(**changes)))

    for view in (weak, strong):
        np.testing.assert_array_equal(apply(view), images)
        flipped = (apply(view, flip=True) != images).any((1, 2, 3))
        np.testing.assert_array_equal(apply(view, flip=True)[flipped], images[flipped][:, :, ::-1])
        assert 16 < flipped.sum() < 48
        cropped = apply(view, crop=0.07)  # one pixel a side: 1 window in 9 is the image itself
        padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode='reflect')
        windows = [padded[:, t : t + 16, l : l + 16] for t in range(3) for l in range(3)]
        hits = np.stack([(cropped == window).all((1, 2, 3)) for window in windows])
        assert hits.any(0).all()
        assert hits.any(1).all()
    np.testing.assert_array_equal(apply(weak, operations=2, cutout=5), images)
    cut = apply(strong, cutout=5) != images
    assert cut.any((1, 2, 3)).all()
    assert (apply(strong, cutout=5)[cut] == 127).all()
    assert cut[..., 0].sum((1, 2)).max() == 36
    for count, share in ((1, 0.5), (3, 0.875)):
        changed = (apply(strong, operations=count) != images).any((1, 2, 3)).mean()
        assert 0.65 * share < changed < min(1.2 * share, 1)  # Identity, and others at times, change nothing


@pytest.mark.parametrize('shape', [(2, 8, 8, 2), (2, 7, 8, 1)], ids=str)
def test_bad_images(shape):
    for view in (weak, strong):
        with pytest.raises(UserError, match='1 or 3 channels'):
            view(rng.root(0), jnp.zeros(shape, jnp.uint8), AugmentOptions())
