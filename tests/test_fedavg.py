"""What FedAvg is made of, by hand. Its rounds, and those of its kin, are held against NumPy in tests/test_phases.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import trees
from semisfl_jax.core.hparams import optimizer
from tests import toy
from tests.rows import STUDENT, Row

ROW = Row(STUDENT, STUDENT, by_images=True)


def test_rows_of_a_cohort_go_back_where_they_came_from():
    tree = {'w': jnp.arange(10.0).reshape(5, 2)}
    ids, weight = jnp.array([3, 1, 1]), jnp.array([1.0, 1.0, 0.0])  # the last is padding, a copy of client 1
    taken = trees.gather(tree, ids)
    np.testing.assert_array_equal(taken['w'], [[6, 7], [2, 3], [2, 3]])
    new = {'w': jnp.array([[60.0, 70.0], [20.0, 30.0], [-1.0, -1.0]])}
    expected = [[0, 1], [20, 30], [4, 5], [60, 70], [8, 9]]
    np.testing.assert_array_equal(trees.scatter(tree, ids, new, weight)['w'], expected)
    assert 'unique_indices = true' in jax.jit(trees.scatter).lower(tree, ids, new, weight).as_text()
    assert trees.scatter((), ids, (), weight) == ()


def test_adam_is_adam():
    """One step from zero moments moves each parameter by lr * sign of its gradient (L2 term included)."""
    hparams = dataclasses.replace(toy.HPARAMS, optimizer='adam', nesterov=False, weight_decay=0.1)
    sgd, w, g = optimizer(hparams, 0.01), jnp.array([1.0, -1.0, 2.0]), jnp.array([0.5, 0.2, -0.1])
    updates, _ = sgd.update(g, sgd.init(w), w)
    np.testing.assert_allclose(updates, -0.01 * np.sign([0.6, 0.1, 0.1]), rtol=1e-4)
