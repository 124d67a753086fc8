"""Batches of which only some rows are there: a model makes of these what it makes of a batch of them alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import core
from semisfl_jax.core import rng
from semisfl_jax.core.state import trainable, with_parameters
from tests import toy
from tests.trees import assert_trees_close

BATCH, THERE = 7, 3


def run(model, student, images, weight, rows):
    """Logits, statistics, and the gradient of a weighted sum of squares of the logits."""

    def loss(parameters):
        variables = with_parameters(student, parameters)
        logits, moved = core.forward(model, variables, images, rng.root(3), True, rows)
        return jnp.sum(logits**2 * weight[:, None]) / jnp.sum(weight), (logits, moved)

    gradient, (logits, moved) = jax.grad(loss, has_aux=True)(trainable(student))
    return logits, moved, gradient


@pytest.mark.parametrize('variance', ['biased', 'unbiased'])
def test_rows_that_are_not_there_change_nothing(variance):
    """Outputs, gradients and BatchNorm, on both sides of the cut, are those of a batch of the others alone."""
    model = toy.model(split_index=1, top_norm=True, variance=variance)  # with dropout
    student = model.init(rng.root(0))
    images = jax.random.normal(jax.random.key(1), (BATCH, *toy.SHAPE))
    images = images.at[THERE:].mul(50.0)  # the others would be seen in every statistic
    valid = jnp.arange(BATCH) < THERE
    padded, moved, gradient = run(model, student, images, valid.astype(jnp.float32), valid)
    expected_logits, expected, expected_gradient = run(model, student, images[:THERE], jnp.ones(THERE), None)
    np.testing.assert_allclose(padded[:THERE], expected_logits, rtol=2e-3, atol=1e-4)
    assert_trees_close(moved, expected, rtol=2e-3, atol=1e-4)
    assert_trees_close(gradient, expected_gradient, rtol=5e-3, atol=5e-4)
    without, _, _ = run(model, student, images, valid.astype(jnp.float32), None)
    assert not np.allclose(without[:THERE], expected_logits, rtol=0.1, atol=0.01)
