"""Views of many images and clients: each draws for itself, inside loops and losses, too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.augment import AugmentOptions, operations, strong, variants, weak
from semisfl_jax.core import rng


@pytest.fixture(scope='module')
def clients():
    """Images [4, 8, 12, 12, 3] of four clients, and their keys."""
    images = np.random.default_rng(4).integers(0, 256, (4, 8, 12, 12, 3), np.uint8)
    return jnp.asarray(images), jax.vmap(lambda i: rng.fold(rng.root(0), 'client', i))(jnp.arange(4))


randaugment = jax.jit(operations.randaugment, static_argnums=5)
OPTIONS = AugmentOptions(cutout=4)


@pytest.mark.parametrize('view', [weak, strong])
def test_clients_are_independent(view, clients):
    """vmap over clients equals one client after the other, and permuting clients permutes the results."""
    images, keys = clients
    together = jax.jit(lambda keys, images: jax.vmap(view, in_axes=(0, 0, None))(keys, images, OPTIONS))
    alone = jax.jit(view, static_argnums=2)
    result = np.asarray(together(keys, images))
    for a in range(4):
        np.testing.assert_array_equal(result[a], alone(keys[a], images[a], OPTIONS))
    order = np.array([2, 0, 3, 1])
    np.testing.assert_array_equal(together(keys[order], images[order]), result[order])
    same_images = np.asarray(together(keys, jnp.stack([images[0]] * 4)))
    assert all((same_images[0] != same_images[a]).any() for a in (1, 2, 3))


@pytest.mark.parametrize('view', [weak, strong])
def test_inside_loops(view, clients):
    """The same in a jitted scan, with vmap inside and with scan under vmap, as outside."""
    images, keys = clients
    alone = jax.jit(view, static_argnums=2)

    @jax.jit
    def run(keys, images):
        def step(total, i):
            stepped = jax.vmap(lambda key: rng.fold(key, 'step', i))(keys)
            out = jax.vmap(view, in_axes=(0, 0, None))(stepped, images, OPTIONS)
            return total + out.sum(dtype=jnp.int32), out

        return jax.lax.scan(step, 0, jnp.arange(3))

    total, result = run(keys, images)
    assert int(total) == np.asarray(result, np.int64).sum()
    for i in range(3):
        for a in range(4):
            expected = alone(rng.fold(keys[a], 'step', i), images[a], OPTIONS)
            np.testing.assert_array_equal(result[i, a], expected)
    assert (result[0] != result[1]).any()

    def twice(key, images):
        return jax.lax.fori_loop(0, 2, lambda i, x: view(rng.fold(key, 'step', i), x, OPTIONS), images)

    expected = alone(rng.fold(keys[1], 'step', 1), alone(rng.fold(keys[1], 'step', 0), images[1], OPTIONS), OPTIONS)
    np.testing.assert_array_equal(jax.jit(jax.vmap(twice))(keys, images)[1], expected)


def test_inside_a_differentiated_loss(clients):
    """A gradient with respect to weights passes by the view."""
    images, keys = clients

    def loss(w):
        def step(total, i):
            out = jax.vmap(strong, in_axes=(0, 0, None))(keys, images, OPTIONS)
            return total + jnp.sum(w * out.astype(jnp.float32)), None

        return jax.lax.scan(step, 0.0, jnp.arange(2))[0]

    strong_views = jax.jit(strong, static_argnums=2)
    expected = 2 * sum(np.asarray(strong_views(keys[a], images[a], OPTIONS), np.float64).sum() for a in range(4))
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(0.5), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ('variant', 'changed'),
    [*(('mc', n) for n in (0, 1, 16, 17, 70)), ('semifl', 33), ('fixmatch', 33), ('fedmatch', 33)],
)
def test_any_number_of_images_is_changed(variant, changed):
    """An image has the same result beside any number of others that an operation changes as alone."""
    draws = np.random.default_rng(changed)
    made = getattr(variants, variant)
    kind = made(10) if variant in ('mc', 'fixmatch') else made()
    images = draws.integers(0, 256, (70, 3, 8, 8), np.uint8)
    if kind.alpha:
        images = np.concatenate([images, 255 * draws.integers(0, 2, (70, 1, 8, 8), np.uint8)], axis=1)
    identity = kind.operations.index('Identity')
    op = np.full(70, identity)
    others = np.flatnonzero(np.arange(len(kind.operations)) != identity)
    op[draws.permutation(70)[:changed]] = draws.choice(others, changed)
    levels = draws.integers(kind.first, kind.levels, 70), draws.choice([-1, 1], 70), draws.random(70) < 0.9
    center = (8 * draws.random((70, 2)).astype(np.float32),) if variant == 'semifl' else ()

    def results(rows):
        op_, v, sign, applied, *rest = (jnp.asarray(x[rows]) for x in (op, *levels, *center))
        return np.asarray(randaugment(jnp.asarray(images[rows]), op_, v, sign, applied, kind, *rest))

    together = results(slice(None))
    for b in range(70):
        np.testing.assert_array_equal(together[b], results(slice(b, b + 1))[0])


def test_weak_and_strong_draw_independently():
    images = np.random.default_rng(7).integers(0, 256, (64, 12, 12, 1), np.uint8)
    options = AugmentOptions(operations=0, cutout=0)
    pair = [np.asarray(jax.jit(view, static_argnums=2)(rng.root(0), images, options)) for view in (weak, strong)]
    same = (pair[0] == pair[1]).all((1, 2, 3))
    assert same.sum() < 20  # 1 in 18 by chance
