"""The lower bound: labels at the server, no clients."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import linear, toy
from tests.first_states import start
from tests.rows import STUDENT, TEACHER, Row

ROW = Row(f'{STUDENT} {TEACHER}', '', unlabeled=False, family='resnet9')


@pytest.mark.slow
def test_supervised_only_reads_no_client_and_ignores_contrast():
    algorithm, key, state = start(name='supervised_only', model=linear.model())
    hparams = dataclasses.replace(toy.HPARAMS, contrastive_weight=9.0, queue='off')
    other = start(hparams, name='supervised_only', model=linear.model())[0]
    federation = toy.federation()
    state_a, metrics = jax.jit(algorithm.round)(key, state, federation, toy.cohort([0]), jnp.int32(3))
    federation = federation.replace(client_images=jnp.zeros_like(federation.client_images))
    state_b, _ = jax.jit(other.round)(key, state, federation, toy.cohort([4]), jnp.int32(3))
    chex.assert_trees_all_equal(state_a.student, state_b.student)
    np.testing.assert_allclose(metrics['loss_supervised'], metrics['loss_supervised_ce'])
    assert np.isnan(metrics['loss_consistency'])
