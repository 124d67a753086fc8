"""What must hold of SemiSFL's rounds; their numbers are held against NumPy in tests/test_phases.py."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from semisfl_jax import core
from semisfl_jax.core import cross_entity, losses, queue, rng, supervised
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from semisfl_jax.core.state import trainable, with_parameters
from semisfl_jax.core.supervised import BLOCK
from semisfl_jax.core.types import SplitParams
from tests import draws, linear, toy
from tests.first_states import start
from tests.marks import slow_but
from tests.rows import HEADS, STUDENT, TEACHER, Row
from tests.trees import assert_trees_close

ROW = Row(f'{STUDENT} {TEACHER} {HEADS}', f'{STUDENT} student.proj')


@pytest.mark.parametrize(('split_index', 'projection'), slow_but([(1, 'mlp'), (2, 'none')]))
def test_one_client_equals_unsplit_training(split_index, projection):
    """With N_h = 1 the cross-entity phase is SGD of one whole model on the client's batches (Eq. 7 and 8)."""
    hparams = dataclasses.replace(toy.HPARAMS, queue='off')
    model, federation, lr, key = toy.model(split_index, projection), toy.federation(), 0.05, rng.root(1)
    state = core.init_state(key, model, queue.build(hparams, model.projection_size))
    cohort = toy.cohort([3])
    after, _ = jax.jit(core.build_cross_entity(model, toy.VIEWS, hparams))(key, state, federation, cohort, lr)

    def logits_and_rows(variables, images, train, t):
        stream = rng.fold(key, 'cross_entity', 0)
        dropout = rng.fold(stream, 'student_dropout', 3, t), rng.fold(stream, 'top_dropout', 3, t)
        features, bottom = model.bottom(variables.bottom, toy.VIEWS.normalize(images), dropout[0], train)
        logits, top = model.top(variables.top, features, dropout[1], train)
        return logits, model.project(variables.proj, features), SplitParams(bottom, top, variables.proj)

    whole, sgd = state.student, optimizer(hparams, lr)
    momentum = sgd.init(trainable(whole))
    rows, _ = draws.client_rows(key, federation, cohort, hparams.batches)
    for t in range(hparams.k_u):
        images = federation.client_images[rows[0, t]]
        weak, strong = (
            getattr(toy.VIEWS, name)(rng.fold(key, 'cross_entity', 0, name, 3, t), images)
            for name in ('weak', 'strong')
        )
        logits, keys, _ = logits_and_rows(state.teacher, weak, False, t)
        confidence, guess = jnp.max(jax.nn.softmax(logits), -1), jnp.argmax(logits, -1)
        confident = confidence >= hparams.threshold
        references = losses.References(keys, guess, confident, jnp.ones_like(confident))

        def loss(parameters, whole=whole, strong=strong, references=references, t=t):
            logits, rows, moved = logits_and_rows(with_parameters(whole, parameters), strong, True, t)
            h_term = jnp.mean(losses.consistency_rows(logits, references.labels, references.confident))
            c_rows = losses.contrastive_rows(rows, references.labels, references, hparams.temperature)
            return h_term + jnp.mean(c_rows), moved

        gradient, whole = jax.grad(loss, has_aux=True)(trainable(whole))
        updates, momentum = sgd.update(gradient, momentum, trainable(whole))
        whole = with_parameters(whole, optax.apply_updates(trainable(whole), updates))
    assert_trees_close(after.student, whole, rtol=1e-3, atol=1e-5)


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
        algorithm, key, state = start(hparams, model=linear.model())
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
