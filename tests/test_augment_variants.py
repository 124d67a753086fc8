"""RandAugments of SemiFL, google-research's FixMatch and FedMatch against Pillow, called as their authors do."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageOps
import pytest

from configs import default
from semisfl_jax import augment, rng
from semisfl_jax.augment import (
    AugmentOptions,
    check,
    draws,
    geometry,
    operations,
    strong,
    tables,
    variants,
)
from semisfl_jax.errors import UserError
from semisfl_jax.training import experiment
from tests.test_augment import (
    ENHANCERS,
    OFF,
    SIGNED,
    examples,
    near,
    numpy_flip_crop,
    pillow_cutout,
    pillow_operation,
    slow_shapes,
    to_array,
    to_images,
    to_pillow,
    to_planes,
)

AFFINE, BILINEAR, BICUBIC = PIL.Image.Transform.AFFINE, PIL.Image.Resampling.BILINEAR, PIL.Image.Resampling.BICUBIC
SHAPES = [(8, 8, 3), (28, 28, 1), (32, 32, 3), (21, 34, 3)]
EVERY_SHAPE = slow_shapes(SHAPES)
OTHERS = ('semifl', 'fixmatch', 'fedmatch')

randaugment = jax.jit(operations.randaugment, static_argnums=5)


def moving(name, by):
    """Matrix of a shear by a slope or a translation by pixels, as the second argument of `transform`."""
    return {
        'ShearX': (1, by, 0, 0, 1, 0),
        'ShearY': (1, 0, 0, by, 1, 0),
        'TranslateX': (1, 0, by, 0, 1, 0),
        'TranslateY': (1, 0, 0, 0, 1, by),
    }[name]


def semifl_operation(name, image, v, sign, center=None):
    """v is not looked at: it is always 10."""
    if name in ENHANCERS:
        return getattr(PIL.ImageEnhance, name)(image).enhance(10.0 * 1.8 / 10 + 0.1)
    match name:
        case 'CutoutConst':
            return pillow_cutout(image, center, 40)
        case 'Invert':
            return PIL.ImageOps.invert(image)
        case 'Posterize':
            return PIL.ImageOps.posterize(image, 4)
        case 'Rotate':
            return image.rotate(sign * 30.0)
        case 'Solarize':
            return PIL.ImageOps.solarize(image, 0)
        case 'ShearX' | 'ShearY':
            return image.transform(image.size, AFFINE, moving(name, sign * (10.0 * 0.3 / 10)), BILINEAR)
        case 'TranslateX' | 'TranslateY':
            return image.transform(image.size, AFFINE, moving(name, sign * 100.0), BILINEAR)
    return pillow_operation(name, image, 5, sign)  # AutoContrast, Equalize, Identity


def fixmatch_operation(name, image, v, sign):
    """Of an RGBA image."""
    if name in ENHANCERS:
        return getattr(PIL.ImageEnhance, name)(image).enhance(float(v) * 1.8 / 10 + 0.1)
    match name:
        case 'AutoContrast' | 'Equalize':
            return getattr(PIL.ImageOps, name.lower())(image.convert('RGB')).convert('RGBA')
        case 'Identity':
            return image
        case 'Posterize':
            return PIL.ImageOps.posterize(image.convert('RGB'), 4 - int(v * 4 / 10)).convert('RGBA')
        case 'Rotate':
            return image.rotate(sign * int(v * 30 / 10))
        case 'Solarize':
            return PIL.ImageOps.solarize(image.convert('RGB'), 256 - int(v * 256 / 10)).convert('RGBA')
        case 'ShearX' | 'ShearY':
            return image.transform(image.size, AFFINE, moving(name, sign * (float(v) * 0.3 / 10)))
    return image.transform(image.size, AFFINE, moving(name, sign * int(v * 10 / 10)))


def fedmatch_operation(name, image, v, sign):
    """Point v of ten in the ranges of FedMatch's file, its unheeded fill included."""
    ends = {'Color': 0.9, 'Contrast': 0.5, 'Sharpness': 0.9, 'Brightness': 0.3, 'Rotate': 360}
    ends |= {'ShearX': 0.3, 'ShearY': 0.3, 'TranslateX': 0.2, 'TranslateY': 0.2}
    value = np.linspace(0, ends.get(name, 0), 10)[v]
    if name in ENHANCERS:
        return getattr(PIL.ImageEnhance, name)(image).enhance(1 + value * sign)
    match name:
        case 'AutoContrast':
            return PIL.ImageOps.autocontrast(image)
        case 'Posterize':
            return PIL.ImageOps.posterize(image, int(np.round(np.linspace(8, 4, 10))[v]))
        case 'Rotate':
            turned = image.convert('RGBA').rotate(value)
            gray = PIL.Image.new('RGBA', turned.size, (128,) * 4)
            return PIL.Image.composite(turned, gray, turned).convert(image.mode)
        case 'Solarize':
            return PIL.ImageOps.solarize(image, np.linspace(256, 231, 10)[v])
        case 'ShearX' | 'ShearY':
            return image.transform(image.size, AFFINE, moving(name, value * sign), BICUBIC, fill=128)
        case 'TranslateX' | 'TranslateY':
            side = image.size[name == 'TranslateY']
            return image.transform(image.size, AFFINE, moving(name, value * side * sign), fill=128)
    return image


VARIANT = {'semifl': variants.semifl(), 'fixmatch': variants.fixmatch(10), 'fedmatch': variants.fedmatch()}
PILLOW = {'semifl': semifl_operation, 'fixmatch': fixmatch_operation, 'fedmatch': fedmatch_operation}


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


@pytest.mark.parametrize('name', ['semifl', 'fixmatch'])  # fedmatch applies every one
def test_operation_not_applied_changes_nothing(name):
    variant = VARIANT[name]
    pool = variant.pool
    planes = to_planes(np.broadcast_to(examples((32, 32, 3))[1], (pool, 32, 32, 3)))
    if variant.alpha:
        planes = jnp.concatenate([planes, jnp.zeros_like(planes[:, :1])], axis=1)
    v, sign, center = np.full(pool, variant.levels - 1), np.ones(pool, int), np.full((pool, 2), 9.0, np.float32)
    unchanged = randaugment(planes, np.arange(pool), v, sign, np.zeros(pool, bool), variant, center)
    np.testing.assert_array_equal(unchanged, planes)
    changed = randaugment(planes, np.arange(pool), v, sign, np.ones(pool, bool), variant, center)
    same = (np.asarray(changed) == planes).all((1, 2, 3))
    assert [op for op, yes in zip(variant.operations, same, strict=False) if yes] == ['Identity'] * (name != 'semifl')


def test_pools():
    mc = set(variants.mc(10).operations)
    semifl, fixmatch, fedmatch = variants.semifl(), variants.fixmatch(10), variants.fedmatch()
    assert set(semifl.operations[: semifl.pool]) == mc - {'Identity'} | {'CutoutConst', 'Invert'}
    assert fixmatch.operations == variants.mc(10).operations
    assert set(fedmatch.operations) == mc - {'Equalize'}  # a no-op there, which is Identity
    assert [len(set(v.operations[: v.pool])) for v in (semifl, fixmatch, fedmatch)] == [15, 14, 13]


def test_clipped_cutout_equals_numpy():
    """Every center; two rows and columns fewer than Pillow's rectangles would cover."""
    centers = np.array([(y, x) for y in range(12) for x in range(10)])
    images = np.random.default_rng(4).integers(0, 256, (len(centers), 12, 10, 3), np.uint8)
    result = to_images(geometry.clipped_cutout(to_planes(images), jnp.asarray(centers), 6, (5, 60, 255)))
    for got, image, (y, x) in zip(result, images, centers, strict=True):
        expected = image.copy()
        expected[max(0, y - 3) : min(12, y + 3), max(0, x - 3) : min(10, x + 3)] = (5, 60, 255)
        np.testing.assert_array_equal(got, expected)


def drawn_layers(name, key, options, batch, shape):
    """What `strong` draws: placement, the operations as NumPy arrays, and more that a variant needs."""
    count, rows = (6, 3) if name == 'fedmatch' else (options.operations, 6 if name == 'semifl' else 4)
    head, tail = 3 + (name == 'fedmatch'), 2 * (name == 'fixmatch')
    uniform = jax.random.uniform(rng.fold(key, 'strong'), (head + rows * count + tail, batch))
    layers = []
    for part in uniform[head : head + rows * count].reshape(count, rows, batch):
        if name == 'semifl':
            drawn = draws.uneven(part[:4], variants.semifl()), draws.center(part[4:], shape)
        elif name == 'fixmatch':
            drawn = draws.half(part, variants.fixmatch(options.magnitude)), None
        else:
            drawn = draws.limited(part, uniform[3], variants.fedmatch()), None
        layers.append(jax.tree.map(np.asarray, drawn))
    return draws.placement(uniform[:3], shape, True, 0.125), layers, uniform[-2:]


MIDDLE = (125, 123, 113)


@pytest.mark.parametrize('name', OTHERS)
def test_whole_view_equals_pillow_chain(name):
    options = AugmentOptions(randaugment=name)
    images = np.random.default_rng(3).integers(0, 256, (48, 32, 32, 3), np.uint8)
    images[::3] = examples((32, 32, 3))[3]
    key, shape = rng.root(5), (48, 3, 32, 32)
    (flip, top, left, pad), layers, last = drawn_layers(name, key, options, 48, shape)
    result = np.asarray(jax.jit(strong, static_argnums=(2, 3))(key, images, options, MIDDLE))
    assert result.dtype == np.uint8
    assert result.shape == images.shape
    variant, pillow = VARIANT[name], PILLOW[name]
    off = []
    for b in range(48):
        image = to_pillow(numpy_flip_crop(images[b], int(flip[b]), int(top[b]), int(left[b]), pad))
        if name == 'fixmatch':
            image = image.convert('RGBA')
        names = []
        for (op, v, sign, applied), center in layers:
            names.append(variant.operations[op[b]])
            more = [center[b].astype(float)] if names[-1] == 'CutoutConst' else []
            if applied[b]:
                image = pillow(names[-1], image, int(v[b]), int(sign[b]), *more)
        expected = np.array(image)
        if name == 'fixmatch':
            expected = np.where(expected[..., 3:] == 0, np.uint8(MIDDLE), expected[..., :3])
            y, x = (np.asarray(last)[:, b] * 32).astype(int)
            expected[max(0, y - 8) : y + 8, max(0, x - 8) : x + 8] = MIDDLE
        if any(n.startswith('Shear') for n in names) and name == 'fedmatch':
            off.append((result[b] != expected).mean())  # a gray level, which later operations may amplify
            continue
        np.testing.assert_array_equal(result[b], expected, err_msg=f'{b}: {names}')
    assert np.mean(off or 0) < 0.03


def test_draws_of_semifl():
    total = 40_000
    variant = variants.semifl()
    uniform = jax.random.uniform(rng.root(0), (4, total))
    op, v, sign, applied = (np.asarray(array) for array in draws.uneven(uniform, variant))
    assert (v == 0).all()  # the one level, which is strength 10
    assert [variant.parameter('ShearX', 0, 1, s) for s in (1, -1)] == [0.3, -0.3]
    assert all(near(n, 1 / 15, total) for n in np.bincount(op, minlength=15))
    assert op.max() == 14
    assert near((sign > 0).sum(), 0.5, total)
    assert near(applied.sum(), 0.5, total)
    high = np.asarray(uniform[2]) > 0.5  # p above 0.5, 0.65 on average
    assert near(applied[high].sum(), 0.65, high.sum())
    assert near(applied[~high].sum(), 0.35, (~high).sum())


def test_draws_of_fixmatch_are_those_of_mc():
    uniform = jax.random.uniform(rng.root(1), (4, 1000))
    for magnitude in (4, 10):
        pair = [draws.half(uniform, of(magnitude)) for of in (variants.mc, variants.fixmatch)]
        jax.tree.map(np.testing.assert_array_equal, *pair)


def test_draws_of_fedmatch():
    total = 40_000
    uniform = jax.random.uniform(rng.root(2), (4, total))
    op, v, sign, applied = (np.asarray(array) for array in draws.limited(uniform[1:], uniform[0], variants.fedmatch()))
    assert applied.all()
    assert all(near(n, 1 / 13, total) for n in np.bincount(op, minlength=13))
    assert op.max() == 12
    assert near((sign > 0).sum(), 0.5, total)
    shares = [sum(1 / m for m in range(2, 6) if v < m) / 4 for v in range(5)]
    assert all(near(n, share, total) for n, share in zip(np.bincount(v), shares, strict=True))
    low = np.asarray(uniform[0]) < 0.25  # limit 2
    assert set(v[low]) == {0, 1}


@pytest.fixture(scope='module')
def clients():
    """Images [3, 6, 12, 12, 3] of three clients, and their keys."""
    images = np.random.default_rng(4).integers(0, 256, (3, 6, 12, 12, 3), np.uint8)
    return jnp.asarray(images), jax.vmap(lambda i: rng.fold(rng.root(0), 'client', i))(jnp.arange(3))


@pytest.mark.parametrize('name', OTHERS)
def test_clients_are_independent(name, clients):
    """vmap over clients equals one client after the other, and so does a scan around it."""
    images, keys = clients
    view = functools.partial(strong, options=AugmentOptions(randaugment=name), middle=MIDDLE)

    @jax.jit
    def together(keys, images):
        return jax.lax.scan(lambda _, i: (None, jax.vmap(view)(keys, images)), None, jnp.arange(1))[1][0]

    result, alone = np.asarray(together(keys, images)), jax.jit(view)
    for a in range(3):
        np.testing.assert_array_equal(result[a], alone(keys[a], images[a]))
    order = np.array([2, 0, 1])
    np.testing.assert_array_equal(together(keys[order], images[order]), result[order])


@pytest.mark.parametrize('name', OTHERS)
def test_views_of_variants_can_be_switched_off(name):
    images = np.random.default_rng(5).integers(0, 256, (4, 8, 8, 1), np.uint8)
    options = OFF._replace(randaugment=name)
    np.testing.assert_array_equal(strong(rng.root(0), images, options), images)


@pytest.mark.slow
def test_gray_images_and_images_of_other_shapes():
    for name in OTHERS:
        images = np.random.default_rng(6).integers(0, 256, (4, 9, 11, 1), np.uint8)
        result = strong(rng.root(0), images, AugmentOptions(randaugment=name))
        assert (result.shape, result.dtype) == (images.shape, jnp.uint8)


def test_fixmatch_fills_with_the_color_given():
    """Where a white image is moved, all that comes in has the given color."""
    images = np.full((64, 16, 16, 3), 255, np.uint8)
    options = OFF._replace(randaugment='fixmatch', operations=1)
    result = np.asarray(strong(rng.root(1), images, options, MIDDLE)).reshape(64, -1, 3)
    _, [((op, _, _, applied), _)], _ = drawn_layers('fixmatch', rng.root(1), options, 64, (64, 3, 16, 16))
    moved = np.isin(np.array(variants.fixmatch(10).operations)[op], SIGNED) & applied
    white, filled = ((result == color).all(2) for color in (255, MIDDLE))
    assert moved.sum() > 5
    assert (white | filled)[moved].all()
    assert not filled[~moved].any()
    assert filled.any(1).sum() > moved.sum() / 2  # the smallest shears move nothing


def test_fixmatch_fills_with_what_normalizes_to_zero():
    """Half a gray level off at most, for a data set whose mean is no gray level."""
    config = default.get_config()
    config.augment.update(randaugment='fixmatch', flip=False, crop=0.0, operations=0)
    dataset = types.SimpleNamespace(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
    views = experiment.views(config.augment, dataset)
    cut = views.normalize(views.strong(rng.root(0), np.full((8, 32, 32, 3), 255, np.uint8)))
    lowest = np.asarray(cut).min((0, 1, 2)) * dataset.std * 255
    assert (np.abs(lowest) <= 0.5).all()


@pytest.mark.parametrize(
    ('name', 'changes', 'message'),
    [
        ('semifl', {'magnitude': 9}, 'its strength is always 10; use 10'),
        ('semifl', {'cutout': 8}, 'it ends without a cutout; use 16 or 0'),
        ('fedmatch', {'operations': 3}, 'it draws 6, or none; use 2 or 0 or 6'),
        ('fedmatch', {'magnitude': 5}, 'use 10'),
        ('fedmatch', {'cutout': 4}, 'use 16 or 0'),
        ('fixmatch', {'cutout': 7}, 'is odd'),
        ('tf', {}, "augment.randaugment='tf' is unknown; use one of mc, semifl, fixmatch, fedmatch"),
    ],
)
def test_options_that_a_variant_would_ignore_are_refused(name, changes, message):
    with pytest.raises(UserError) as error:
        check(AugmentOptions(randaugment=name, **changes))
    assert message in str(error.value)
    for key, value in changes.items():
        assert f'augment.{key}={value}' in str(error.value)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('name', augment.VARIANTS)
def test_options_at_their_defaults_or_meaningful_pass(name):
    check(AugmentOptions(randaugment=name))
    check(AugmentOptions(randaugment=name, operations=0, cutout=0))
    if name == 'fedmatch':
        check(AugmentOptions(randaugment=name, operations=6))
    else:
        check(AugmentOptions(randaugment=name, operations=3))
    if name in ('mc', 'fixmatch'):
        check(AugmentOptions(randaugment=name, magnitude=5, cutout=8))


def test_blend_above_one_is_clipped_as_pillow_does():
    """Every pair of values, for SemiFL's 1.9 and FixMatch's 1.72."""
    image, degenerate = (PIL.Image.fromarray(array.astype(np.uint8)) for array in np.mgrid[:256, :256][::-1])
    for variant, v, factor in ((variants.semifl(), 0, 1.9), (variants.fixmatch(10), 9, 1.72)):
        mixes, rows = tables.blends(variant)
        row = rows[variant.operations.index('Color'), v, 0]
        np.testing.assert_array_equal(mixes[row], np.asarray(PIL.Image.blend(degenerate, image, factor)))
