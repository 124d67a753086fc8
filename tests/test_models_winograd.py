"""Winograd's convolutions against sums over kernel positions in float64, and where they are taken."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.models import lowerings, winograd
from tests.convolution import convolve

SIDES = [(6, 8), (5, 7), (4, 5), (1, 2), (3, 1)]  # whole tiles, and tiles that reach beyond the last row or column
PADDINGS = [0, 1, 2]
POSSIBLE = [(sides, padding) for sides, padding in itertools.product(SIDES, PADDINGS) if min(sides) + 2 * padding >= 3]


def gradients(x, kernel, cotangent, padding):
    """Of <cotangent, convolution> in x and kernel, position by position in float64."""
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    of_padded, of_kernel = np.zeros_like(padded), np.zeros_like(kernel)
    height, width = cotangent.shape[1:3]
    for i, j in itertools.product(range(3), range(3)):
        window = np.s_[:, i : i + height, j : j + width]
        of_padded[window] += cotangent @ kernel[i, j].T
        of_kernel[i, j] = np.einsum('bhwc,bhwf->cf', padded[window], cotangent)
    return of_padded[:, padding : padding + x.shape[1], padding : padding + x.shape[2]], of_kernel


@pytest.mark.parametrize(('sides', 'padding'), POSSIBLE)
def test_outputs_and_gradients(sides, padding):
    draw = np.random.default_rng(0)
    x, kernel = draw.normal(size=(2, *sides, 3)), draw.normal(size=(3, 3, 3, 4))
    expected = convolve(x, kernel, padding)
    cotangent = draw.normal(size=expected.shape)
    with jax.enable_x64():
        got = winograd.convolve(jnp.asarray(x), jnp.asarray(kernel), padding)
        of_x = winograd.input_gradient(jnp.asarray(cotangent), jnp.asarray(kernel), padding)
        of_kernel = winograd.kernel_gradient(jnp.asarray(x), jnp.asarray(cotangent), padding)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip((of_x, of_kernel), gradients(x, kernel, cotangent, padding), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_rounding_is_that_of_a_float32_convolution():
    """Against float64, at the width at which it is taken: no more than twice the error of XLA's operator."""
    draw = np.random.default_rng(1)
    x, kernel = (draw.normal(size=shape).astype(np.float32) for shape in ((2, 8, 8, 256), (3, 3, 256, 64)))
    exact = convolve(x, kernel, 1)
    errors = {}
    for name in ('winograd', 'native'):
        with jax.default_matmul_precision('highest'):
            got = lowerings.LOWERINGS[name](jnp.asarray(x), jnp.asarray(kernel), 1)
        errors[name] = np.sqrt(np.mean((np.asarray(got, np.float64) - exact) ** 2))
    assert 0 < errors['winograd'] < 2 * errors['native']


@pytest.mark.parametrize('padding', [0, 1])
def test_a_gradient_of_its_gradient(padding, monkeypatch):
    """For losses that contain a gradient, as those of FedDure's regulators."""
    monkeypatch.setattr(winograd, 'WIDE', 1)
    draw = np.random.default_rng(2)
    x, kernel = draw.normal(size=(2, 5, 6, 3)), draw.normal(size=(3, 3, 3, 4))
    tangents = draw.normal(size=x.shape), draw.normal(size=kernel.shape)

    def second(convolve, x, kernel, out):
        def first(x, kernel, out):
            return jax.vjp(lambda x, kernel: convolve(x, kernel, padding), x, kernel)[1](out)

        return jax.vjp(first, x, kernel, out)[1](tuple(map(jnp.asarray, tangents)))

    with jax.enable_x64():
        out = draw.normal(size=convolve(x, kernel, padding).shape)
        arrays = tuple(map(jnp.asarray, (x, kernel, out)))
        got, expected = (second(lowerings.LOWERINGS[name], *arrays) for name in ('winograd', 'native'))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ('kernel', 'stride', 'dilation', 'dtype', 'suits'),
    [
        ((3, 3, 128, 128), 1, 1, 'float32', True),
        ((3, 3, 192, 384), 1, 1, 'float32', True),
        ((3, 3, 64, 192), 1, 1, 'float32', False),  # few channels: the transformations cost more than they save
        ((5, 5, 128, 128), 1, 1, 'float32', False),
        ((3, 3, 128, 128), 2, 1, 'float32', False),
        ((3, 3, 128, 128), 1, 2, 'float32', False),
        ((3, 3, 128, 128), 1, 1, 'bfloat16', False),
    ],
)
def test_where_it_is_taken(kernel, stride, dilation, dtype, suits):
    x = jnp.zeros((1, 8, 8, kernel[2]), dtype)
    weights = jnp.zeros(kernel, dtype)
    assert winograd.suits(x, weights, stride, dilation) == suits
    text = jax.jit(lambda x, k: lowerings.winograd(x, k, 1, stride, dilation)).lower(x, weights).as_text()
    assert ('stablehlo.convolution' in text) != suits
    assert text.count('stablehlo.dot_general') == (16 if suits else 0)
