"""FedProx: what it adds to FedAvg. Its rounds are held against a twin in tests/test_fedavg.py."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.core import trees
from semisfl_jax.core.hparams import Local
from tests import toy
from tests.fedavg_rounds import FEDERATION, start, two_rounds
from tests.rows import STUDENT, Row

ROW = Row(STUDENT, STUDENT, by_images=True)


@pytest.mark.slow
def test_fedprox_without_a_weight_is_fedavg_bit_for_bit():
    states = [two_rounds(name, {'local': Local(prox=0.0)})[-1] for name in ('fedavg', 'fedprox')]
    chex.assert_trees_all_equal(*states)


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
def test_a_strong_pull_keeps_clients_near_the_model_they_received():
    def distance(mu):
        changes = {'local': Local(prox=mu), 'weight_decay': 0.0}
        algorithm, key, state, _ = start('fedprox', **changes)
        after, _ = jax.jit(algorithm.round)(key, state, FEDERATION, toy.cohort([2, 4]), jnp.int32(0))
        params = [[piece['params'] for piece in s.student] for s in (after, state)]
        return float(trees.squared_distance(*params))

    assert distance(20.0) < 0.5 * distance(0.0)
