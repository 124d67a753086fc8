"""Every form of convolutions and dense products, against loops and each other."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.models import lowerings, pooling
from tests.convolution import convolve

STRIDED = [(3, 1, 2), (1, 0, 2), (3, 0, 2), (5, 2, 3)]  # one side of 9 x 8 ends between two windows


@pytest.mark.parametrize('lowering', sorted(lowerings.LOWERINGS))
@pytest.mark.parametrize(('size', 'padding', 'stride'), [(3, 1, 1), (5, 0, 1), (3, 0, 1), *STRIDED])
def test_convolutions(lowering, size, padding, stride):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 9, 8, 3)).astype(np.float32), rng.normal(size=(size, size, 3, 4)).astype(np.float32)
    got = lowerings.LOWERINGS[lowering](x, kernel, padding, stride)
    np.testing.assert_allclose(got, convolve(x, kernel, padding, stride), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('lowering', sorted(lowerings.LOWERINGS))
@pytest.mark.parametrize(('size', 'padding', 'stride'), [(3, 1, 1), (5, 0, 1), (3, 0, 1), (5, 2, 1), *STRIDED])
def test_gradients_of_convolutions(lowering, size, padding, stride):
    """A convolution is linear in each argument, so its gradients are sums over the positions, taken here in float64.
    One with a stride is one without, of which all other outputs are thrown away."""
    rng = np.random.default_rng(1)
    x, kernel = rng.normal(size=(2, 9, 8, 3)), rng.normal(size=(size, size, 3, 4))
    cotangent = rng.normal(size=convolve(x, kernel, padding, stride).shape)
    out = np.zeros((2, 9 + 2 * padding - size + 1, 8 + 2 * padding - size + 1, 4))
    out[:, ::stride, ::stride] = cotangent
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    of_padded, of_kernel = np.zeros_like(padded), np.zeros_like(kernel)
    for i, j in itertools.product(range(size), range(size)):
        window = np.s_[:, i : i + out.shape[1], j : j + out.shape[2]]
        of_padded[window] += out @ kernel[i, j].T
        of_kernel[i, j] = np.einsum('bhwc,bhwf->cf', padded[window], out)
    of_x = of_padded[:, padding : padding + 9, padding : padding + 8]

    function = partial(lowerings.LOWERINGS[lowering], padding=padding, stride=stride)
    _, back = jax.vjp(function, jnp.float32(x), jnp.float32(kernel))
    for got, expected in zip(back(jnp.float32(cotangent)), (of_x, of_kernel), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(('rows', 'inputs', 'outputs'), [(5, 7, 3), (256, 2048, 2048)])
def test_dense_product_and_its_gradients(rows, inputs, outputs):
    rng = np.random.default_rng(3)
    shapes = (rows, inputs), (inputs, outputs), (rows, outputs)
    x, kernel, out = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    got, back = jax.vjp(lowerings.dense_direct, x, kernel)
    np.testing.assert_allclose(got, x @ kernel, rtol=1e-4, atol=1e-3)
    for gradient, expected in zip(back(out), (out @ kernel.T, x.T @ out), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-3)


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


@pytest.mark.parametrize(('size', 'padding'), [(3, 1), (5, 0), (3, 0), (5, 2)])
@pytest.mark.parametrize('channels', [1, 3])
def test_corners_of_windows(size, padding, channels):
    """`direct_corners` holds the same numbers as the convolution, window by window, odd sides included."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, 10, 9, channels)).astype(np.float32)
    kernel = rng.normal(size=(size, size, channels, 4)).astype(np.float32)
    full = convolve(x, kernel, padding)
    height, width = full.shape[1] // 2, full.shape[2] // 2
    expected = np.stack([full[:, i : 2 * height : 2, j : 2 * width : 2] for i in (0, 1) for j in (0, 1)], axis=-2)
    got = lowerings.direct_corners(jnp.asarray(x), jnp.asarray(kernel), padding)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(('name', 'number'), [('cnn', 2), ('wresnet28x2', 28)])
def test_every_convolution_keeps_the_fast_form_inside_a_loop(name, number):
    """Kernels and batch as XLA's CPU backend wants them in all passes, and no groups."""
    model = models.build(name, 10, (32, 32, 3), convolution='direct')
    bottom = jax.eval_shape(model.init, jax.random.key(0)).bottom

    def loss(parameters, statistics, x):
        variables = {'params': parameters, 'batch_stats': statistics}
        return jnp.sum(model.bottom(variables, x, None, True)[0] ** 2)

    def looped(parameters, statistics, x):
        return jax.lax.map(lambda one: jax.grad(loss)(one[0], statistics, one[1]), (parameters, x))

    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), bottom['params'])
    text = jax.jit(looped).lower(stacked, bottom.get('batch_stats', {}), jnp.zeros((2, 4, 32, 32, 3)))
    text = text.as_text(dialect='hlo')
    convolutions = [line for line in text.splitlines() if ' convolution(' in line]
    assert len(convolutions) == 3 * number - 1  # forward, kernels and inputs; images need no gradient
    for line in convolutions:
        assert 'dim_labels=b01f_01io->b01f' in line
        assert 'feature_group_count' not in line
        assert 'batch_group_count' not in line


@pytest.mark.parametrize('pad', [False, True])
@pytest.mark.parametrize('side', [4, 5, 7])
def test_max_pool(side, pad):
    x = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf) if pad else x
    out = (side + 2 * pad) // 2
    expected = np.stack(
        [[padded[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2)) for j in range(out)] for i in range(out)]
    )
    np.testing.assert_array_equal(pooling.max_pool(jnp.asarray(x), pad), expected.transpose(2, 0, 1, 3))


def test_gradient_of_max_pool_goes_to_the_first_largest():
    x = np.array([[1.0, 3, 0, 0], [3, 2, 0, 0], [-1, -2, 5, 5], [-3, -1, 5, 5]], np.float32)[None, :, :, None]
    gradient = jax.grad(lambda x: jnp.sum(pooling.max_pool(x) * jnp.array([[1.0, 2], [3, 4]])[None, :, :, None]))(x)
    expected = np.array([[0, 1, 2, 0], [0, 0, 0, 0], [3, 0, 4, 0], [0, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(gradient[0, :, :, 0], expected)


def test_pooling_bias_and_relu_in_one_with_their_gradient():
    """As one after another, ties and dead windows included: small integers, so that both are exact."""
    draw = np.random.default_rng(5)
    x, out = (
        draw.integers(-3, 4, (4, 6, 6, 8)).astype(np.float32),
        draw.integers(-3, 4, (4, 3, 3, 8)).astype(np.float32),
    )
    bias = np.arange(-4, 4).astype(np.float32)  # at the first all are dead, at the last hardly any

    def in_turn(x, bias):
        return jax.nn.relu(pooling.max_pool(x) + bias)

    def at_once(x, bias):
        return pooling.activated_max_of_corners(pooling.windows(x), bias)

    expected, back = jax.vjp(in_turn, x, bias)
    got, back_at_once = jax.vjp(at_once, x, bias)
    assert 0.2 < np.mean(np.asarray(expected) == 0) < 0.8
    np.testing.assert_array_equal(got, expected)
    for one, other in zip(back_at_once(out), back(out), strict=True):
        np.testing.assert_array_equal(one, other)

    def of_gradients(function):  # for losses that contain a gradient, as those of FedDure's regulators
        def squares(x, bias):
            values, back = jax.vjp(function, x, bias)
            return sum(jnp.sum(gradient**2) for gradient in back(values * out))

        return jax.grad(squares, (0, 1))(x, bias)

    x = draw.permutation(x.size).reshape(x.shape).astype(np.float32) / x.size - 0.5  # no ties: those may be divided
    bias = bias / 8
    for one, other in zip(of_gradients(at_once), of_gradients(in_turn), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
