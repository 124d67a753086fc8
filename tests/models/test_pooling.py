"""Pooling against loops, with ties."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.models import pooling


@pytest.mark.parametrize(('side', 'pad'), [(4, False), (5, True), (7, False)])
def test_max_pool_equals_loops(side, pad):
    x = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf) if pad else x
    got = pooling.max_pool(jnp.asarray(x), pad)
    assert got.shape[1:3] == ((side + 2 * pad) // 2,) * 2
    for i, j in itertools.product(range(got.shape[1]), repeat=2):
        np.testing.assert_array_equal(got[:, i, j], padded[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2)))


def test_gradient_of_max_pool_goes_to_the_first_largest():
    x = np.array([[1.0, 3, 0, 0], [3, 2, 0, 0], [-1, -2, 5, 5], [-3, -1, 5, 5]], np.float32)[None, :, :, None]
    gradient = jax.grad(lambda x: jnp.sum(pooling.max_pool(x) * jnp.array([[1.0, 2], [3, 4]])[None, :, :, None]))(x)
    expected = np.array([[0, 1, 2, 0], [0, 0, 0, 0], [3, 0, 4, 0], [0, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(gradient[0, :, :, 0], expected)


@pytest.mark.slow
def test_pooling_bias_and_relu_in_one_with_their_gradients():
    """As one after another, ties and dead windows included: small integers, so that both are exact."""
    draw = np.random.default_rng(5)
    x, out = (draw.integers(-3, 4, shape).astype(np.float32) for shape in ((4, 6, 6, 8), (4, 3, 3, 8)))
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
