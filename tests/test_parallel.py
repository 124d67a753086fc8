"""Layouts of the client axis: the same numbers, less memory."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, core
from semisfl_jax.core import rng
from semisfl_jax.core.types import LOCAL_CLIENTS
from tests import toy
from tests.marks import slow_but
from tests.trees import assert_trees_close


@pytest.mark.parametrize('chunk', [1, 2, 3, 5, 8])
def test_a_chunked_map_is_vmap_and_so_is_its_gradient(chunk):
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(jax.random.key(1), (5, 3, 4))
    shared = jax.random.normal(jax.random.key(2), (4,))

    def function(shared, tree, key):
        noisy = tree['x'] * shared + jax.random.normal(key, tree['x'].shape)
        return {'y': jnp.tanh(noisy), 'sum': noisy.sum()}

    def total(client_map, shared, x):
        out = client_map(function, in_axes=(None, 0, 0))(shared, {'x': x}, keys)
        return jnp.sum(out['y'] ** 2) + jnp.sum(out['sum'])

    expected, gradients = jax.value_and_grad(partial(total, jax.vmap), argnums=(0, 1))(shared, x)
    got, chunked = jax.jit(jax.value_and_grad(partial(total, core.client_map(chunk)), argnums=(0, 1)))(shared, x)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for a, b in zip(chunked, gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('switches', slow_but([{}, {'client_teacher_ema': True, 'client_teacher_bn': 'train'}], {}))
@pytest.mark.parametrize('chunk', slow_but([1, 2]))
def test_a_round_in_chunks_equals_the_round_at_once(chunk, switches):
    """Cohorts of 3 and chunks of 1 and 2 (2 leaves a smaller last chunk). Only the order of sums differs."""
    hparams = dataclasses.replace(toy.HPARAMS, **switches)
    states = []
    for axis in (LOCAL_CLIENTS, core.client_axis(chunk)):
        algorithm = algorithms.build('semisfl', toy.model(), toy.VIEWS, hparams, axis)
        key = rng.root(0)
        state, _ = jax.jit(algorithm.round)(
            key, algorithm.init(key), toy.federation(), toy.cohort([0, 2, 4]), jnp.int32(2)
        )
        states.append(state)
    assert_trees_close(states[0].student, states[1].student, rtol=1e-4, atol=1e-6)
    assert_trees_close(states[0].teacher, states[1].teacher, rtol=1e-4, atol=1e-6)


def test_memory_of_activations_is_that_of_a_chunk():
    """XLA's own account of the temporary memory of a gradient over 64 clients: chunks of 4 take far less."""

    def loss(client_map, weights, x):
        features = client_map(lambda w, x: jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w.T) @ w, axis=0))(weights, x)
        return jnp.sum(features**2)

    weights, x = jnp.ones((64, 16, 256)), jnp.ones((64, 128, 16))
    temporary = {}
    for chunk in (0, 4):
        gradient = jax.jit(jax.grad(partial(loss, core.client_map(chunk))))
        temporary[chunk] = gradient.lower(weights, x).compile().memory_analysis().temp_size_in_bytes
    assert temporary[4] < 0.5 * temporary[0]
