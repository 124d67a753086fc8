"""Winograd's convolution: how it rounds, and where it is taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.models import lowerings
from tests.helpers.convolution import convolve


def test_winograds_rounding_is_that_of_a_float32_convolution():
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


@pytest.mark.parametrize(
    ('kernel', 'stride', 'dilation', 'dtype', 'suits'),
    [
        ((3, 3, 128, 128), 1, 1, 'float32', True),
        ((3, 3, 64, 192), 1, 1, 'float32', False),  # few channels: the transformations cost more than they save
        ((5, 5, 128, 128), 1, 1, 'float32', False),
        ((3, 3, 128, 128), 2, 1, 'float32', False),
        ((3, 3, 128, 128), 1, 2, 'float32', False),
        ((3, 3, 128, 128), 1, 1, 'bfloat16', False),
    ],
)
def test_where_winograd_is_taken(kernel, stride, dilation, dtype, suits):
    x, weights = jnp.zeros((1, 8, 8, kernel[2]), dtype), jnp.zeros(kernel, dtype)
    text = jax.jit(lambda x, k: lowerings.winograd(x, k, 1, stride, dilation)).lower(x, weights).as_text()
    assert ('stablehlo.convolution' in text) != suits
    assert text.count('stablehlo.dot_general') == (16 if suits else 0)
