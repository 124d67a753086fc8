"""Whole views: what they draw, their chain in Pillow, their options; of many images and clients, inside of loops."""

import hashlib
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from semisfl_jax.augment import AugmentOptions, check, operations, strong, variants, weak
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import schema
from semisfl_jax.core import rng
from semisfl_jax.training import experiment
from tests.helpers.binomial import near
from tests.helpers.marks import slow_but
from tests.helpers.pillow_operations import PILLOW, examples, numpy_flip_crop, pillow_cutout, to_array, to_pillow

VARIANTS = schema.KEYS['augment.randaugment'].metadata['choices']
OFF = AugmentOptions(flip=False, crop=0.0, operations=0, cutout=0)
MIDDLE = (125, 123, 113)
TOTAL = 40_000  # draws
randaugment = jax.jit(operations.randaugment, static_argnums=5)
weak_view, strong_view = jax.jit(weak, static_argnums=2), jax.jit(strong, static_argnums=(2, 3))


def images_of(*shape):
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


# --- whole views


def drawn_layers(name, key, options, batch, shape):
    """What `strong` draws: placement, the operations as NumPy arrays with a center or None, and two last numbers."""
    count, rows = (6, 3) if name == 'fedmatch' else (options.operations, 6 if name == 'semifl' else 4)
    head, tail = 3 + (name == 'fedmatch'), 2 * (name in ('mc', 'fixmatch'))
    uniform = jax.random.uniform(rng.fold(key, 'strong'), (head + rows * count + tail, batch))
    layers = []
    for part in uniform[head : head + rows * count].reshape(count, rows, batch):
        variant = variants.get(name, 10)
        *drawn, center = variant.draw(variant, part, uniform[3:head], shape)
        layers.append(jax.tree.map(np.asarray, (drawn, center)))
    return variants.draw_placement(uniform[:3], shape, True, 0.125), layers, uniform[-2:]


@pytest.mark.parametrize(('name', 'shape'), [('mc', (28, 28, 1)), *((name, (32, 32, 3)) for name in VARIANTS)], ids=str)
def test_strong_view_equals_pillow_chain(name, shape):
    """The drawn numbers are read off the key, what they do is Pillow's."""
    cutout = 5 if shape[0] == 28 else 16
    options, images = AugmentOptions(randaugment=name, cutout=cutout), images_of(64, *shape)
    images[::3] = examples(shape)[3]
    key, planes, side = rng.root(5), (64, shape[2], *shape[:2]), shape[0]
    (flip, top, left, pad), layers, last = drawn_layers(name, key, options, 64, planes)
    result = np.asarray(strong_view(key, images, options, MIDDLE))
    assert (result.dtype, result.shape) == (np.uint8, images.shape)
    off = [0.0]
    for b in range(64):
        image = to_pillow(numpy_flip_crop(images[b], int(flip[b]), int(top[b]), int(left[b]), pad))
        image = image.convert('RGBA') if name == 'fixmatch' else image
        names = []
        for (op, v, sign, applied), center in layers:
            names.append(variants.get(name, 10).operations[op[b]])
            more = [center[b].astype(float)] if names[-1] == 'CutoutConst' else []
            if applied[b]:
                image = PILLOW[name](names[-1], image, int(v[b]), int(sign[b]), *more)
        y, x = np.asarray(last)[:, b] * np.float32(side)
        expected = to_array(pillow_cutout(image, (float(y), float(x)), cutout) if name == 'mc' else image)
        if name == 'fixmatch':
            expected = np.where(expected[..., 3:] == 0, np.uint8(MIDDLE), expected[..., :3])
            expected[max(0, int(y) - 8) : int(y) + 8, max(0, int(x) - 8) : int(x) + 8] = MIDDLE
        if any(n.startswith('Shear') for n in names) and name == 'fedmatch':
            off.append((result[b] != expected).mean())  # a gray level, which later operations may amplify
        else:
            np.testing.assert_array_equal(result[b], expected, err_msg=f'{b}: {names}')
    assert np.mean(off) < 0.03


@pytest.mark.parametrize(('crop', 'pad'), [(0.125, (2, 5)), (0.9, (14, 36))], ids=str)
def test_weak_view_equals_numpy(crop, pad):
    """Also that weak and strong views draw independently."""
    images, options, key = images_of(64, 16, 40, 3), replace(OFF, flip=True, crop=crop), rng.root(5)
    uniform = jax.random.uniform(rng.fold(key, 'weak'), (3, 64))
    flip, top, left, _ = variants.draw_placement(uniform, (64, 3, 16, 40), True, crop)
    result = np.asarray(weak_view(key, images, options))
    for b in range(64):
        expected = numpy_flip_crop(images[b], int(flip[b]), int(top[b]), int(left[b]), pad)
        np.testing.assert_array_equal(result[b], expected)
    assert (result == np.asarray(strong_view(key, images, options))).all((1, 2, 3)).sum() < 10  # by chance, 1 in 110


@pytest.mark.parametrize(('view', 'digest'), [(weak_view, 'a533c15871df90ba'), (strong_view, '72aa7686b945e8f3')])
def test_views_stay_what_they_were(view, digest):
    """A record of earlier results, the draws included: a run of today is to repeat one of yesterday."""
    images = np.random.default_rng(11).integers(0, 256, (64, 32, 32, 3), np.uint8)
    result = np.asarray(view(rng.root(7), images, AugmentOptions()))
    assert hashlib.sha256(result.tobytes()).hexdigest()[:16] == digest


# --- draws


def check_choice(op, pool, sign):
    assert (op.min(), op.max()) == (0, pool - 1)
    assert all(near(n, 1 / pool, TOTAL) for n in np.bincount(op))
    assert set(sign) == {-1, 1}
    assert near((sign > 0).sum(), 0.5, TOTAL)


def drawn(variant, uniform, shared=None):
    """Operation, level, sign and whether it is applied, without a center."""
    return [np.asarray(array) for array in variant.draw(variant, uniform, shared, (TOTAL, 3, 32, 40))[:4]]


@pytest.mark.parametrize('magnitude', [10, 4])
def test_operations_levels_and_signs_are_drawn_uniformly_and_independently(magnitude):
    """Independently of each other."""
    op, v, sign, applied = drawn(variants.get('mc', magnitude), jax.random.uniform(rng.root(0), (4, TOTAL)))
    check_choice(op, 14, sign)
    assert (v.min(), v.max()) == (1, magnitude - 1)
    assert all(near(n, 1 / (magnitude - 1), TOTAL) for n in np.bincount(v)[1:])
    assert near((applied & (sign > 0)).sum(), 0.25, TOTAL)
    assert near((applied & (op == 7) & (v == 2)).sum(), 0.5 / 14 / (magnitude - 1), TOTAL)


def test_flips_and_crops_are_drawn_uniformly():
    uniform = jax.random.uniform(rng.root(1), (3, TOTAL))
    flip, top, left, pad = variants.draw_placement(uniform, (TOTAL, 3, 32, 40), True, 0.125)
    assert pad == (4, 5)
    assert near(int(flip.sum()), 0.5, TOTAL)
    assert all(near(n, 1 / 9, TOTAL) for n in np.bincount(top, minlength=9))
    assert all(near(n, 1 / 11, TOTAL) for n in np.bincount(left, minlength=11))
    center = np.asarray(variants.draw_center(uniform[:2], (TOTAL, 3, 32, 40)))
    assert center.min() >= 0
    assert (center.max(0) < (32, 40)).all()
    np.testing.assert_allclose(center.mean(0), (16, 20), atol=0.3)


def test_draws_stay_in_range_at_the_ends():
    last = np.nextafter(np.float32(1), np.float32(0))
    for end, expected in ((0.0, (0, 1, 1, True)), (last, (13, 9, -1, False))):
        ends = drawn(variants.get('mc', 10), jnp.full((4, 1), end, jnp.float32))
        assert tuple(array[0].item() for array in ends) == expected


def test_semifl_draws_every_operation_and_level():
    variant, uniform = variants.SEMIFL, jax.random.uniform(rng.root(0), (6, TOTAL))
    op, v, sign, applied = drawn(variant, uniform)
    check_choice(op, 15, sign)
    assert (v == 0).all()  # the one level, which is strength 10
    assert [variant.parameter('ShearX', 0, 1, s) for s in (1, -1)] == [0.3, -0.3]
    high = np.asarray(uniform[2]) > 0.5  # p above 0.5, 0.65 on average
    assert near(applied[high].sum(), 0.65, high.sum())
    assert near(applied[~high].sum(), 0.35, (~high).sum())


def test_fedmatch_draws_levels_up_to_a_limit():
    uniform = jax.random.uniform(rng.root(2), (4, TOTAL))
    op, v, sign, applied = drawn(variants.FEDMATCH, uniform[1:], uniform[:1])
    check_choice(op, 13, sign)
    assert applied.all()
    shares = [sum(1 / m for m in range(2, 6) if v < m) / 4 for v in range(5)]
    assert all(near(n, share, TOTAL) for n, share in zip(np.bincount(v), shares, strict=True))
    assert set(v[np.asarray(uniform[0]) < 0.25]) == {0, 1}  # limit 2


# --- options


@pytest.mark.slow
def test_each_option_does_its_own_work_and_all_off_do_nothing():
    """Each option alone does its own work, and all off do nothing."""
    images = np.random.default_rng(8).integers(0, 127, (64, 16, 16, 3), np.uint8)

    def apply(view, **changes):
        return np.asarray(view(rng.root(0), images, replace(OFF, **changes)))

    for view in (weak_view, strong_view):
        np.testing.assert_array_equal(apply(view), images)
        flipped = (apply(view, flip=True) != images).any((1, 2, 3))
        np.testing.assert_array_equal(apply(view, flip=True)[flipped], images[flipped][:, :, ::-1])
        assert 16 < flipped.sum() < 48
        cropped = (apply(view, crop=0.07) != images).any((1, 2, 3))  # one pixel a side: 9 windows
        assert 48 < cropped.sum() < 64
    np.testing.assert_array_equal(apply(weak_view, operations=2, cutout=5), images)
    cut = apply(strong_view, cutout=5)
    assert (cut[cut != images] == 127).all()
    assert (cut != images).any((1, 2, 3)).all()
    for count, share in ((1, 0.5), (3, 0.875)):
        changed = (apply(strong_view, operations=count) != images).any((1, 2, 3)).mean()
        assert 0.65 * share < changed < min(1.2 * share, 1)  # Identity, and others at times, change nothing


def test_fixmatch_fills_with_what_normalizes_to_zero():
    """Half a gray level off at most, for a data set whose mean is not a gray level."""
    config = default.get_config()
    config.augment.update(randaugment='fixmatch', flip=False, crop=0.0, operations=0)
    dataset = types.SimpleNamespace(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
    views = experiment.views(config.augment, dataset)
    cut = views.normalize(views.strong(rng.root(0), np.full((8, 32, 32, 3), 255, np.uint8)))
    lowest = np.asarray(cut).min((0, 1, 2)) * dataset.std * 255
    assert (np.abs(lowest) <= 0.5).all()


def test_a_square_without_a_center_is_refused():
    with pytest.raises(UserError, match=r'augment\.cutout=7'):
        check(AugmentOptions(randaugment='fixmatch', cutout=7))


def test_images_too_small_or_of_two_channels_are_refused():
    small, two_channels = jnp.zeros((2, 7, 8, 1), jnp.uint8), jnp.zeros((2, 8, 8, 2), jnp.uint8)
    for view in (weak, strong):
        with pytest.raises(UserError, match='at least 8'):
            view(rng.root(0), small, AugmentOptions())
    with pytest.raises(UserError, match=r'augment\.operations=2.* not of 2; use 0'):
        strong(rng.root(0), two_channels, AugmentOptions(operations=2))


@pytest.mark.parametrize(('channels', 'variant'), [(2, 'mc'), (13, 'fixmatch')])
def test_without_operations_each_channel_is_as_alone(channels, variant):
    options = replace(OFF, flip=True, crop=0.125, cutout=4, operations=0, randaugment=variant)
    images, middle = images_of(8, 16, 16, channels), tuple(range(channels))
    result = np.stack([weak(rng.root(5), images, options), strong(rng.root(5), images, options, middle)])
    for c in range(channels):
        alone = images[..., c : c + 1]
        expected = [weak(rng.root(5), alone, options), strong(rng.root(5), alone, options, middle[c : c + 1])]
        np.testing.assert_array_equal(result[..., c : c + 1], expected)


# --- many images and clients


@pytest.mark.parametrize('view', [weak, strong])
def test_clients_in_loops_and_losses_draw_as_each_alone(view):
    """In a scan inside of a differentiated loss, with vmap over clients inside."""
    images, options = jnp.asarray(images_of(4, 8, 12, 12, 3)), AugmentOptions(cutout=4)
    keys = jax.vmap(lambda i: rng.fold(rng.root(0), 'client', i))(jnp.arange(4))
    alone = jax.jit(view, static_argnums=2)

    def loss(w):
        def step(total, i):
            stepped = jax.vmap(lambda key: rng.fold(key, 'step', i))(keys)
            out = jax.vmap(view, in_axes=(0, 0, None))(stepped, images, options)
            return total + jnp.sum(w * out.astype(jnp.float32)), out

        return jax.lax.scan(step, 0.0, jnp.arange(2))

    gradient, result = jax.jit(jax.grad(loss, has_aux=True))(0.5)
    np.testing.assert_allclose(gradient, np.asarray(result, np.float64).sum(), rtol=1e-5)
    for i in range(2):
        for a in range(4):
            np.testing.assert_array_equal(result[i, a], alone(rng.fold(keys[a], 'step', i), images[a], options))
    assert (result[0] != result[1]).any()


@pytest.mark.parametrize(
    ('name', 'changed'),
    slow_but(
        [*(('mc', n) for n in (1, 16, 17, 70)), ('semifl', 33), ('fixmatch', 33), ('fedmatch', 33)],
        ('mc', 17),
        ('semifl', 33),
    ),
)
def test_any_number_of_images_is_changed(name, changed):
    """An image has the same result beside any number of others that an operation changes as alone."""
    draws, kind = np.random.default_rng(changed), variants.get(name, 10)
    images = draws.integers(0, 256, (70, 3, 8, 8), np.uint8)
    if kind.alpha:
        images = np.concatenate([images, 255 * draws.integers(0, 2, (70, 1, 8, 8), np.uint8)], axis=1)
    identity = kind.operations.index('Identity')
    op = np.full(70, identity)
    others = np.flatnonzero(np.arange(len(kind.operations)) != identity)
    op[draws.permutation(70)[:changed]] = draws.choice(others, changed)
    levels = draws.integers(kind.first, kind.levels, 70), draws.choice([-1, 1], 70), draws.random(70) < 0.9
    center = (8 * draws.random((70, 2)).astype(np.float32),) if name == 'semifl' else ()

    def results(rows):
        op_, v, sign, applied, *rest = (jnp.asarray(x[rows]) for x in (op, *levels, *center))
        return np.asarray(randaugment(jnp.asarray(images[rows]), op_, v, sign, applied, kind, *rest))

    together = results(slice(None))
    for b in range(70):
        np.testing.assert_array_equal(together[b], results(slice(b, b + 1))[0])


def test_scales_and_angles_are_drawn_within_their_ranges():
    """Uniform in scale_min .. scale_max and -rotate .. rotate."""
    uniform = jnp.array([[0.0, 0.5, 1.0], [0.0, 0.25, 1.0]])
    scale, angle = variants.draw_similarity(uniform, 0.75, 1.25, 20.0)
    np.testing.assert_allclose(scale, [0.75, 1, 1.25])
    np.testing.assert_allclose(angle, [-20, -10, 20])
