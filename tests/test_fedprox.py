"""FedProx: what it adds to FedAvg. Its rounds are held against NumPy in tests/test_phases.py."""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import trees
from tests.rows import STUDENT, Row

ROW = Row(STUDENT, STUDENT, by_images=True, keys=(('local.prox', 5.0),))


def test_the_proximal_gradient():
    """mu (theta - theta_g), and nothing at theta_g."""
    received = {'a': jnp.array([1.0, -2.0]), 'b': jnp.array([[3.0]])}
    parameters = {'a': jnp.array([1.5, 1.0]), 'b': jnp.array([[3.0]])}
    mu = 0.7
    value, gradient = jax.value_and_grad(lambda w: 0.5 * mu * trees.squared_distance(w, received))(parameters)
    np.testing.assert_allclose(value, 0.35 * (0.25 + 9.0), rtol=1e-6)
    np.testing.assert_allclose(gradient['a'], [0.35, 2.1], rtol=1e-6)
    np.testing.assert_array_equal(gradient['b'], [[0.0]])
