"""Whole views of the other RandAugments: what they draw, their chain in Pillow, their options."""

import types

import jax
import numpy as np
import pytest

from configs import default
from semisfl_jax.augment import AugmentOptions, check, strong, variants
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import experiment
from tests.binomial import near
from tests.pillow_operations import (
    OFF,
    SIGNED,
    examples,
    numpy_flip_crop,
    to_pillow,
)
from tests.pillow_variants import OTHERS, PILLOW, VARIANT


def drawn_layers(name, key, options, batch, shape):
    """What `strong` draws: placement, the operations as NumPy arrays, and more that a variant needs."""
    count, rows = (6, 3) if name == 'fedmatch' else (options.operations, 6 if name == 'semifl' else 4)
    head, tail = 3 + (name == 'fedmatch'), 2 * (name == 'fixmatch')
    uniform = jax.random.uniform(rng.fold(key, 'strong'), (head + rows * count + tail, batch))
    layers = []
    for part in uniform[head : head + rows * count].reshape(count, rows, batch):
        if name == 'semifl':
            drawn = variants.draw_uneven(part[:4], variants.semifl()), variants.draw_center(part[4:], shape)
        elif name == 'fixmatch':
            drawn = variants.draw_half(part, variants.fixmatch(options.magnitude)), None
        else:
            drawn = variants.draw_limited(part, uniform[3], variants.fedmatch()), None
        layers.append(jax.tree.map(np.asarray, drawn))
    return variants.draw_placement(uniform[:3], shape, True, 0.125), layers, uniform[-2:]


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
    op, v, sign, applied = (np.asarray(array) for array in variants.draw_uneven(uniform, variant))
    assert (v == 0).all()  # the one level, which is strength 10
    assert [variant.parameter('ShearX', 0, 1, s) for s in (1, -1)] == [0.3, -0.3]
    assert all(near(n, 1 / 15, total) for n in np.bincount(op, minlength=15))
    assert op.max() == 14
    assert near((sign > 0).sum(), 0.5, total)
    assert near(applied.sum(), 0.5, total)
    high = np.asarray(uniform[2]) > 0.5  # p above 0.5, 0.65 on average
    assert near(applied[high].sum(), 0.65, high.sum())
    assert near(applied[~high].sum(), 0.35, (~high).sum())


def test_draws_of_fedmatch():
    total = 40_000
    uniform = jax.random.uniform(rng.root(2), (4, total))
    op, v, sign, applied = (
        np.asarray(array) for array in variants.draw_limited(uniform[1:], uniform[0], variants.fedmatch())
    )
    assert applied.all()
    assert all(near(n, 1 / 13, total) for n in np.bincount(op, minlength=13))
    assert op.max() == 12
    assert near((sign > 0).sum(), 0.5, total)
    shares = [sum(1 / m for m in range(2, 6) if v < m) / 4 for v in range(5)]
    assert all(near(n, share, total) for n, share in zip(np.bincount(v), shares, strict=True))
    low = np.asarray(uniform[0]) < 0.25  # limit 2
    assert set(v[low]) == {0, 1}


@pytest.mark.parametrize('name', OTHERS)
def test_views_of_variants_can_be_switched_off(name):
    images = np.random.default_rng(5).integers(0, 256, (4, 8, 8, 1), np.uint8)
    options = OFF._replace(randaugment=name)
    np.testing.assert_array_equal(strong(rng.root(0), images, options), images)


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
    """Half a gray level off at most, for a data set whose mean is not a gray level."""
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
        ('semifl', {'magnitude': 9}, 'use 10'),
        ('semifl', {'cutout': 8}, 'use 16 or 0'),
        ('fedmatch', {'operations': 3}, 'use 2 or 0 or 6'),
        ('fedmatch', {'magnitude': 5}, 'use 10'),
        ('fedmatch', {'cutout': 4}, 'use 16 or 0'),
        ('fixmatch', {'cutout': 7}, 'has an even side'),
    ],
)
def test_options_that_a_variant_would_ignore_are_refused(name, changes, message):
    with pytest.raises(UserError) as error:
        check(AugmentOptions(randaugment=name, **changes))
    assert message in str(error.value)
    for key, value in changes.items():
        assert f'augment.{key}={value}' in str(error.value)
    assert '\n' not in str(error.value)
