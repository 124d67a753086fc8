"""Losses of one's own in the cross-entity phase, against NumPy on a model of three matrices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import core
from semisfl_jax.algorithms.semisfl import build_round
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import queue, rng
from semisfl_jax.core.losses import cross_entropy_rows
from semisfl_jax.core.types import Algorithm
from tests.helpers import linear, toy
from tests.helpers.marks import slow_but

ROUNDS = (([0, 2, 4], [0, 0, 0], 3), ([1, 2, 4], [0, 1, 1], 2))  # cohort, its visits, K_s
HPARAMS = dataclasses.replace(toy.HPARAMS, threshold=0.8, labeled_rows=1, consistency_weight=0.5)


def soft(rows):
    """Toward the labeler's distribution, sharpened; a client's own labels as they are; small features; an axis."""
    target = jax.nn.softmax(rows.teacher_logits / 0.5)
    toward = -jnp.sum(target * jax.nn.log_softmax(rows.logits), axis=-1)
    own = cross_entropy_rows(rows.logits, rows.labels)
    values = jnp.where(rows.labeled, own, jnp.where(rows.confident, 2.0, 0.5) * toward)
    aligned = {} if rows.projections is None else {'loss_aligned': 1.0 - rows.projections[:, 0]}
    return {'loss_soft': values, 'loss_size': 0.05 * jnp.sum(rows.features**2, axis=-1), **aligned}


class Server(linear.Server):
    def terms(self, rows):
        powers = np.exp(rows.teacher_logits / 0.5)
        target = powers / powers.sum(axis=1, keepdims=True)
        logs = rows.logits - np.log(np.exp(rows.logits).sum(axis=1, keepdims=True))
        toward = np.where(rows.confident, 2.0, 0.5) * -(target * logs).sum(axis=1)
        values = np.where(rows.labeled, linear.cross_entropies(rows.logits, rows.labels), toward)
        aligned = {'loss_aligned': (0.5, 1.0 - rows.projections[:, 0])} if self.contrasts else {}
        return {'loss_soft': (0.5, values), 'loss_size': (0.5, 0.05 * (rows.features**2).sum(axis=1)), **aligned}


def build(row_losses, queued, labeler=None):
    model = linear.model()
    own = {'labeler': labeler, 'row_losses': row_losses}
    clients = core.build_cross_entity(model, toy.VIEWS, HPARAMS, **own)
    supervised = core.build_supervised(model, toy.VIEWS, HPARAMS)

    def init(key):
        return core.init_state(key, model, queue.build(HPARAMS, linear.WIDTH, key) if queued else ())

    round_ = build_round(HPARAMS, supervised, clients)
    return Algorithm(init, round_, core.predict_by(model, toy.VIEWS, 'teacher', 'student'), headline='teacher')


@pytest.mark.parametrize('queued', slow_but([False, True], False))
def test_rounds_equal_the_ones_in_numpy(queued):
    """Two rounds. With a queue, clustering regularization is added."""
    h = HPARAMS
    algorithm, data = build(soft, queued), toy.federation(labels_at_clients=True)
    state, run = algorithm.init(rng.root(0)), jax.jit(algorithm.round)
    server = Server(rng.root(0), h, state.student)
    server.contrasts = queued
    for ids, visits, k_s in ROUNDS:
        padded = toy.cohort([*ids, 2], [*visits, 0])
        cohort = padded._replace(weight=padded.weight.at[-1].set(0.0))  # a copy of a client that counts nothing
        state, metrics = run(rng.root(0), state, data, cohort, jnp.int32(k_s))
        expected = server.run_round(data, ids, visits, k_s)
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=2e-3, atol=1e-5, err_msg=name)
        assert 'loss_consistency' not in metrics
        own = [expected[name] for name in expected.keys() - {'loss_supervised', 'loss_clustering'}]
        total = 0.5 * sum(own) + h.clustering_weight * expected.get('loss_clustering', 0.0)
        np.testing.assert_allclose(metrics['loss_unlabeled'], total, rtol=2e-3)
        linear.assert_close(state, server)


@pytest.mark.parametrize(
    'found',
    [
        lambda rows: {},
        lambda rows: jnp.zeros(12),
        lambda rows: {'soft': jnp.zeros(12)},
        lambda rows: {'loss_unlabeled': jnp.zeros(12)},
        lambda rows: {'loss_supervised': jnp.zeros(12)},
        lambda rows: {'loss_soft': jnp.mean(rows.logits)},
    ],
)
def test_what_is_not_a_loss_of_rows_is_refused(found):
    algorithm, data = build(found, queued=False), toy.federation(labels_at_clients=True)
    state = algorithm.init(rng.root(0))
    with pytest.raises(UserError, match=r'row_losses|metric loss_supervised'):
        jax.eval_shape(algorithm.round, rng.root(0), state, data, toy.cohort([0, 2, 4]), jnp.int32(1))


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({}, ''),
        ({'target': lambda *_: ()}, r'target returned the shape \(\); return \[12, 3\]'),
        ({'target': lambda *_: jnp.zeros(12)}, r'target returned the shape \[12\]; return \[12, 3\]'),
        ({'confident': lambda *_: jnp.zeros(3, bool)}, r'confident returned the shape \[3\]; return \[12\]'),
        ({'confident': lambda *_: jnp.zeros(12)}, r'confident returned float32 \[12\]; return bool'),
        ({'update': lambda *_: ()}, r'update returned the shape \(\); return \[3\]'),
        ({'metrics': lambda counts: {'doubt': jnp.zeros(12)}}, r"metrics returned .*12.*; return \{'doubt': \[3\]\}"),
        ({'metrics': lambda counts: {'mask_rate': counts}}, 'metric mask_rate'),
        ({'keeps': True}, r'State\.clients is empty'),
    ],
)
def test_what_a_labeler_returns_is_checked(changes, named):
    """It counts the iterations of each client."""
    labeler = core.Labeler(
        core.reaches(HPARAMS.threshold),
        start=lambda ids, state: jnp.zeros(len(ids)),
        update=lambda weak, labels, confident, counts: counts + 1.0,
        metrics=lambda counts: {'doubt': counts},
    )._replace(**changes)
    algorithm, data = build(soft, queued=False, labeler=labeler), toy.federation(labels_at_clients=True)
    given = rng.root(0), algorithm.init(rng.root(0)), data, toy.cohort([0, 2, 4]), jnp.int32(1)
    if not named:
        assert jax.eval_shape(algorithm.round, *given)[1]['doubt'].shape == ()
        return
    with pytest.raises(UserError, match=named):
        jax.eval_shape(algorithm.round, *given)
