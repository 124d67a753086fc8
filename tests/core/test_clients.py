"""Layouts of the client axis: the same numbers, less memory."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, core
from semisfl_jax.algorithms.fedmatch import FedMatch
from semisfl_jax.algorithms.semifl import SemiFL
from semisfl_jax.algorithms.splitfed import SplitFed
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import Local
from semisfl_jax.core.types import LOCAL_CLIENTS
from tests.helpers import linear, toy


@pytest.mark.parametrize('chunk', [2, 8])
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
    got, chunked = jax.jit(jax.value_and_grad(partial(total, core.clients.client_map(chunk)), argnums=(0, 1)))(
        shared, x
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for a, b in zip(chunked, gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    program = jax.make_jaxpr(partial(total, core.clients.client_map(chunk)))(shared, x)
    assert ('length=2' in str(program)) == (chunk == 2)  # two whole chunks in turn; the rest is less than one


KEPT = Local(epochs=1, optimizer_state='kept')
METHODS = {
    'semisfl': {'client_teacher_ema': True, 'client_teacher_bn': 'train'},
    'fedavg': {'local': KEPT, 'labeled_rows': 1},
    'fedmatch': {'labeled_rows': 1, 'options': FedMatch(helper_every=1), 'threshold': 0.5},
    'semifl': {'local': KEPT, 'options': SemiFL(pass_batch_size=8), 'threshold': 0.5},
    'splitfed': {'local': Local('supervised'), 'labeled_rows': 4, 'server_trains': False, 'options': SplitFed('v1')},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'layout'),
    [
        ('semisfl', {'chunk': 2}),
        ('fedavg', {'chunk': 2}),
        *((name, {'how': 'loop'}) for name in ('semisfl', 'fedmatch', 'semifl', 'splitfed')),
    ],
)
def test_layouts_give_the_same_numbers(name, layout):
    """A cohort of 3: chunks of 2 leave a smaller last one. Only the order of sums differs."""
    hparams = dataclasses.replace(toy.HPARAMS, num_clients=5, **METHODS[name])
    federation, results = toy.federation(labels_at_clients=True), []
    for axis in (LOCAL_CLIENTS, core.clients.client_axis(**layout)):
        algorithm, key = algorithms.build(name, linear.model(), toy.VIEWS, hparams, axis), rng.root(0)
        results.append(
            jax.jit(algorithm.round)(key, algorithm.init(key), federation, toy.cohort([0, 2, 4]), jnp.int32(2))
        )
    chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-5)


def test_memory_of_activations_is_that_of_a_chunk():
    """XLA's own account of the temporary memory of a gradient over 64 clients: chunks of 4 take far less."""

    def loss(client_map, weights, x):
        features = client_map(lambda w, x: jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w.T) @ w, axis=0))(weights, x)
        return jnp.sum(features**2)

    weights, x = jnp.ones((64, 16, 256)), jnp.ones((64, 128, 16))
    temporary = {}
    for chunk in (0, 4):
        gradient = jax.jit(jax.grad(partial(loss, core.clients.client_map(chunk))))
        temporary[chunk] = gradient.lower(weights, x).compile().memory_analysis().temp_size_in_bytes
    assert temporary[4] < 0.5 * temporary[0]


def test_devices_are_divided_among_trials(monkeypatch):
    monkeypatch.setattr(jax, 'device_count', lambda: 4)
    assert [core.clients.available_to_trials(trials) for trials in (1, 5, 6, 8)] == [1, 1, 3, 4]
