"""Each operation of the four RandAugments, equal to Pillow or NumPy pixel by pixel."""

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from semisfl_jax.augment import operations, tables, variants
from tests.helpers.pillow_operations import PILLOW, examples, to_array, to_images, to_pillow, to_planes

randaugment = jax.jit(operations.randaugment, static_argnums=5)
VARIANT = {  # of `mc` one level more than is drawn: the end of every range
    'mc': variants.get('mc', 11),
    'semifl': variants.SEMIFL,
    'fixmatch': variants.get('fixmatch', 10),
    'fedmatch': variants.FEDMATCH,
}
OPERATIONS = [(kind, name) for kind, variant in VARIANT.items() for name in variant.operations]
SHAPES = [(28, 28, 1), (21, 34, 3), *(pytest.param(s, marks=pytest.mark.slow) for s in ((8, 8, 3), (96, 96, 3)))]


@pytest.mark.parametrize('shape', SHAPES, ids=str)
@pytest.mark.parametrize(('kind', 'name'), OPERATIONS)
def test_operation_equals_pillow(kind, name, shape):
    """Every level, both signs, every kind of image. Bit by bit, but for one gray level in a few pixels of FedMatch's
    bicubic shears; with FixMatch transparent where pixels came in from outside, as in the original."""
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


@pytest.mark.slow
def test_autocontrast_equals_pillow_for_every_range():
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
