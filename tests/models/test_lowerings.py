"""Every form of convolutions, dense products and pooling, against loops and each other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.models import lowerings, winograd
from tests.helpers.convolution import convolve, gradients

# (size, padding, stride, dilation). One side of 9 x 8 ends between two windows; beyond the map, only the kernel's
# center is left.
CASES = [(3, 1, 1, 1), (5, 0, 1, 1), (1, 0, 2, 1), (3, 0, 2, 1), (5, 2, 3, 1), (3, 4, 1, 4), (3, 2, 2, 2), (3, 9, 1, 9)]
CASES += [(3, 0, 1, 1), (3, 2, 1, 1)]


@pytest.mark.parametrize('lowering', sorted(lowerings.LOWERINGS))
@pytest.mark.parametrize('case', CASES)
def test_convolutions_and_their_gradients(lowering, case, monkeypatch):
    monkeypatch.setattr(winograd, 'WIDE', 1)
    draw = np.random.default_rng(0)
    x, kernel = draw.normal(size=(2, 9, 8, 3)), draw.normal(size=(case[0], case[0], 3, 4))
    got, back = jax.vjp(partial(_positional, lowering, case), jnp.float32(x), jnp.float32(kernel))
    expected = convolve(x, kernel, *case[1:])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    cotangent = draw.normal(size=expected.shape)
    for one, other in zip(back(jnp.float32(cotangent)), gradients(x, kernel, cotangent, *case[1:]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def _positional(lowering, case, x, kernel):
    return lowerings.LOWERINGS[lowering](x, kernel, *case[1:])


@pytest.mark.slow
@pytest.mark.parametrize(('lowering', 'case'), [('winograd', (3, 0, 1, 1)), *(('direct', case) for case in CASES[:5])])
def test_gradients_of_gradients_equal_xlas(lowering, case, monkeypatch):
    """As those of XLA's own, for losses that contain a gradient, as those of FedDure's regulators."""
    monkeypatch.setattr(winograd, 'WIDE', 1)
    draw = np.random.default_rng(1)
    x, kernel = draw.normal(size=(2, 9, 8, 3)), draw.normal(size=(case[0], case[0], 3, 4))
    tangents = draw.normal(size=x.shape), draw.normal(size=kernel.shape)

    def second(name, x, kernel, out):
        def first(x, kernel, out):
            return jax.vjp(partial(_positional, name, case), x, kernel)[1](out)

        return jax.vjp(first, x, kernel, out)[1](tuple(map(jnp.asarray, tangents)))

    with jax.enable_x64():
        out = draw.normal(size=convolve(x, kernel, *case[1:]).shape)
        arrays = tuple(map(jnp.asarray, (x, kernel, out)))
        for one, other in zip(second(lowering, *arrays), second('native', *arrays), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_dense_products_of_clients_are_one():
    """Over the rows of all clients, with one gradient of the kernel that they share."""
    draw = np.random.default_rng(4)
    x, kernel, out = (draw.normal(size=size).astype(np.float32) for size in ((3, 5, 7), (7, 4), (3, 5, 4)))

    def of_all(x, kernel):
        return jax.vmap(lowerings.dense_of_clients, in_axes=(0, None))(x, kernel)

    got, back = jax.vjp(of_all, x, kernel)
    np.testing.assert_allclose(got, x @ kernel, rtol=1e-5, atol=1e-5)
    expected = out @ kernel.T, np.einsum('abd,abf->df', x, out)
    for gradient, by_hand in zip(back(out), expected, strict=True):
        np.testing.assert_allclose(gradient, by_hand, rtol=1e-5, atol=1e-5)
    lines = jax.jit(lambda *args: jax.vjp(of_all, *args[:2])[1](args[2])).lower(x, kernel, out).as_text().splitlines()
    products = [line for line in lines if 'dot_general' in line]
    assert len(products) == 2  # the forward pass is not needed for a linear function's gradients
    assert not any('batching_dims' in line for line in products)
    kernels = np.stack([kernel, 2 * kernel, 3 * kernel])
    each = jax.vmap(lowerings.dense_of_clients)(x, kernels)  # each its own
    np.testing.assert_allclose(each, x @ kernels, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(('size', 'padding', 'channels'), [(3, 1, 3), (5, 0, 1), (5, 2, 3)])
def test_corners_of_windows_hold_the_numbers_of_the_convolution(size, padding, channels):
    """`direct_corners` holds the same numbers as the convolution, window by window, odd sides included."""
    draw = np.random.default_rng(2)
    x, kernel = draw.normal(size=(2, 10, 9, channels)), draw.normal(size=(size, size, channels, 4))
    full = convolve(x, kernel, padding)
    height, width = full.shape[1] // 2, full.shape[2] // 2
    expected = np.stack([full[:, i : 2 * height : 2, j : 2 * width : 2] for i in (0, 1) for j in (0, 1)], axis=-2)
    got = lowerings.direct_corners(jnp.float32(x), jnp.float32(kernel), padding)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ('build', 'name', 'number'),
    [
        (models.build, 'cnn', 2),
        (models.build_dense, 'scene_net', 11),
        pytest.param(models.build, 'wresnet28x2', 28, marks=pytest.mark.slow),
    ],
)
def test_every_convolution_keeps_the_fast_form_inside_a_loop(build, name, number):
    """Kernels and batch as XLA's CPU backend wants them in all passes, and no groups."""
    model = build(name, 3, (16, 16, 3), convolution='direct')
    parts = jax.eval_shape(model.init, jax.random.key(0))[:2]
    parameters, statistics = [part['params'] for part in parts], [part.get('batch_stats', {}) for part in parts]

    def loss(parameters, statistics, x):
        bottom, top = ({'params': p, 'batch_stats': s} for p, s in zip(parameters, statistics, strict=True))
        features, _ = model.bottom(bottom, x, None, True)
        return jnp.sum(model.top(top, features, None, True)[0] ** 2)

    def looped(parameters, statistics, x):
        return jax.lax.map(lambda one: jax.grad(loss)(one[0], statistics, one[1]), (parameters, x))

    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), parameters)
    text = jax.jit(looped).lower(stacked, statistics, jnp.zeros((2, 4, 16, 16, 3))).as_text(dialect='hlo')
    convolutions = [line for line in text.splitlines() if ' convolution(' in line]
    assert len(convolutions) == 3 * number - 1  # forward, kernels and inputs; images need no gradient
    for line in convolutions:
        assert 'dim_labels=b01f_01io->b01f' in line
        assert 'group_count' not in line
