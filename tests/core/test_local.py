"""What the server averages of what its clients upload."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import Local
from tests.helpers import linear, toy


def test_who_sits_out_is_in_no_average():
    """Clients 1, 2 and 4 of 7, 11 and 19 images upload their numbers, and client 2 has nothing to train on."""

    def client(inputs, client_state, state, data, lr):
        own = inputs.id.astype(jnp.float32)
        return core.ClientOutput({'w': own}, client_state, {'own': own}, {}, participates=inputs.id != 2)

    hparams = dataclasses.replace(toy.HPARAMS, local=Local(weighting='samples'))
    run = core.build_local(client, hparams, received=lambda state: {'w': jnp.float32(-1.0)})
    state = core.init_state(rng.root(0), linear.model(), teacher=False)
    averaged, _, metrics = jax.jit(run)(rng.root(0), state, toy.federation(), toy.cohort([1, 2, 4]), jnp.float32(0.1))
    np.testing.assert_allclose(averaged['w'], (1 * 7 + 4 * 19) / (7 + 19), rtol=1e-6)
    np.testing.assert_allclose(metrics['own'], (1 + 4) / 2, rtol=1e-6)
    np.testing.assert_allclose(metrics['clients_sitting_out'], 1 / 3, rtol=1e-6)
