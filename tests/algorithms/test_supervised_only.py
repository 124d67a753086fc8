"""The lower bound: labels at the server, no clients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import algorithms
from semisfl_jax.core import rng
from tests.helpers import linear, toy
from tests.helpers.rows import STUDENT, TEACHER, Row

ROWS = {'supervised_only': Row(f'{STUDENT} {TEACHER}', '', unlabeled=False)}


def test_rounds_equal_the_ones_in_numpy():
    """Cross-entropy alone, whoever is in the cohort, and an average of the model over its steps."""
    hparams = dataclasses.replace(toy.HPARAMS, ema_decay=0.6)
    algorithm = algorithms.build('supervised_only', linear.model(), toy.VIEWS, hparams)
    state, run = algorithm.init(rng.root(0)), jax.jit(algorithm.round)
    server = linear.Server(rng.root(0), hparams, state.student, labels_by='student')
    for k_s in (3, 2):
        state, metrics = run(rng.root(0), state, toy.federation(), toy.cohort([4, 0, 2]), jnp.int32(k_s))
        expected = server.run_round(toy.federation(), [], [], k_s)
        np.testing.assert_allclose(metrics['loss_supervised'], expected['loss_supervised'], rtol=1e-3)
        linear.assert_close(state, server)
    assert algorithm.headline == 'student'
