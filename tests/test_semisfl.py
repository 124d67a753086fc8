"""What must hold of SemiSFL's rounds; their numbers are held against NumPy in tests/test_phases.py."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms
from semisfl_jax.core import cross_entity, rng, supervised
from semisfl_jax.core.hparams import HParams, learning_rate
from semisfl_jax.core.supervised import BLOCK
from tests import linear, toy
from tests.marks import slow_but
from tests.rows import HEADS, STUDENT, TEACHER, Row

ROW = Row(f'{STUDENT} {TEACHER} {HEADS}', f'{STUDENT} student.proj')


@pytest.mark.parametrize(('most', 'at_once'), slow_but([(BLOCK, 6), (4, 3)], (BLOCK, 6)))
def test_views_that_are_made_ahead(most, at_once, monkeypatch):
    """As for a GPU: of all steps at once, or of as many iterations as fit, and step by step at the server."""
    hparams = dataclasses.replace(toy.HPARAMS, k_u=6)
    federation, cohort, k_s = toy.federation(), toy.cohort([1, 3]), jnp.int32(BLOCK + 2)
    asked, made = [], []

    def watched(phase, *arguments):
        made.append(cross_entity_at_once(phase, *arguments))
        return made[-1]

    cross_entity_at_once = cross_entity.iterations_at_once
    monkeypatch.setattr(cross_entity, 'iterations_at_once', watched)
    results = []
    for steps in (1, most):
        for module in (supervised, cross_entity):
            name, ask = 'steps_at_once', lambda images, views, steps=steps: asked.append(views) or steps
            monkeypatch.setattr(module, name, ask)
        algorithm, key = algorithms.build('semisfl', linear.model(), toy.VIEWS, hparams), rng.root(0)
        state = algorithm.init(key)
        round_ = functools.partial(algorithm.round)  # built once, so it has to be a function that JAX has not seen
        results.append(jax.jit(round_)(key, state, federation, cohort, k_s))
    assert made == [1, at_once]
    assert set(asked) == {2 * hparams.server_batch_size, 2 * 2 * hparams.batch_size}  # two views of every image
    chex.assert_trees_all_close(*results, rtol=1e-6)


def test_learning_rate():
    hparams = HParams()
    for h in (0, 1, 500, 999, 1000, 2000):
        expected = 0.005 + 0.5 * 0.015 * (1 + np.cos(np.pi * min(h / 1000, 1)))
        np.testing.assert_allclose(learning_rate(hparams, jnp.int32(h)), expected, rtol=1e-5)
    poly = HParams(lr=1e-4, lr_min=1e-5, lr_rounds=20, lr_schedule='poly')
    for h in (0, 1, 10, 19, 20, 30):
        expected = 1e-5 + 9e-5 * (1 - min(h / 20, 1)) ** 0.9
        np.testing.assert_allclose(learning_rate(poly, jnp.int32(h)), expected, rtol=1e-5)
