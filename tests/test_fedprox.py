"""FedProx: what it adds to FedAvg. Its rounds are held against NumPy in tests/test_phases.py."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.core import trees
from semisfl_jax.core.hparams import Local
from tests import linear, toy
from tests.first_states import start
from tests.rows import STUDENT, Row

ROW = Row(STUDENT, STUDENT, by_images=True)


def test_the_proximal_gradient():
    """mu (theta - theta_g), and nothing at theta_g."""
    received = {'a': jnp.array([1.0, -2.0]), 'b': jnp.array([[3.0]])}
    parameters = {'a': jnp.array([1.5, 1.0]), 'b': jnp.array([[3.0]])}
    mu = 0.7
    value, gradient = jax.value_and_grad(lambda w: 0.5 * mu * trees.squared_distance(w, received))(parameters)
    np.testing.assert_allclose(value, 0.35 * (0.25 + 9.0), rtol=1e-6)
    np.testing.assert_allclose(gradient['a'], [0.35, 2.1], rtol=1e-6)
    np.testing.assert_array_equal(gradient['b'], [[0.0]])


@pytest.mark.slow
def test_fedprox_without_a_weight_is_fedavg_bit_for_bit():
    def after(name):
        algorithm, key, state = start(dataclasses.replace(toy.HPARAMS, local=Local(prox=0.0)), name, 0, linear.model())
        return jax.jit(algorithm.round)(key, state, toy.federation(), toy.cohort([2, 4]), jnp.int32(2))[0]

    chex.assert_trees_all_equal(after('fedavg'), after('fedprox'))
