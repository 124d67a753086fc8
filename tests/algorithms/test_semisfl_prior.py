"""SemiSFL + client priors: the rule by hand, whole rounds in NumPy, shards of the clients, upper and lower lines."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, core
from semisfl_jax.algorithms.semisfl_prior import Prior, build_labeler
from semisfl_jax.core import cross_entity, rng
from tests.helpers import linear, toy
from tests.helpers.marks import slow_but
from tests.helpers.rows import HEADS, STUDENT, TEACHER, Row
from tests.helpers.trees import assert_trees_close

ROWS = {'semisfl_prior': Row(f'{STUDENT} {TEACHER} {HEADS} clients', f'{STUDENT} student.proj clients')}
ROUNDS = (([0, 2, 4], [0, 0, 0], 3), ([1, 2, 4], [0, 1, 1], 2))  # cohort, its visits, K_s


def settings(**prior):
    return dataclasses.replace(toy.HPARAMS, threshold=0.95, labeled_rows=1, options=Prior(**prior))


def test_labels_follow_the_shares_of_a_client():
    """Two clients of two images, three classes. Client 1 had class 0 four times; client 0 is new."""
    labeler = build_labeler(dataclasses.replace(toy.HPARAMS, threshold=0.6, options=Prior()))
    stored = types.SimpleNamespace(clients=jnp.array([[0.0, 0, 0], [4, 0, 0], [0, 9, 9]]))
    counts = labeler.start(jnp.array([0, 1, 2]), stored)
    np.testing.assert_array_equal(counts, [[0, 0, 0], [2, 0, 0], [0, 4.5, 4.5]])  # halved
    logits = np.log([[0.5, 0.4, 0.1]] * 2 + [[0.5, 0.4, 0.1], [0.4, 0.5, 0.1]] + [[0.8, 0.1, 0.1]] * 2)
    known = np.array([True, True, True, True, False, False])  # client 2 does not take part
    weak = core.WeakViews(jnp.arange(3), jnp.array([1.0, 1, 0]), logits, None, known)
    made = label(labeler, weak, counts)
    # pi: 1/3 each; (3, 1, 1) / 5. Their mean: (7, 4, 4) / 15
    ratios = np.array([[5 / 7, 5 / 4, 5 / 4], [9 / 7, 3 / 4, 3 / 4]])
    np.testing.assert_allclose(made.logits[:4], logits[:4] + np.log(np.repeat(ratios, 2, axis=0)), rtol=1e-6)
    # Shares of client 0: 20, 28 and 7 of 55; of client 1: 30, 14, 3.5 of 47.5, and 24, 17.5, 3.5 of 45
    np.testing.assert_array_equal(made.confident[:4], [False, False, True, False])
    np.testing.assert_array_equal(made.labels[:4], [3, 3, 0, 3])  # 3 is no class: these anchors have no C
    np.testing.assert_array_equal(made.state[:2], [[0, 0, 0], [3, 0, 0]])
    np.testing.assert_array_equal(made.state[2], counts[2])
    without = dataclasses.replace(toy.HPARAMS, threshold=0.6, options=Prior(0.5, 0.0, 'none', all_anchors=True))
    labeler = build_labeler(without)
    np.testing.assert_array_equal(labeler.start(jnp.array([1]), stored), np.zeros((1, 3)))
    made = label(labeler, weak, counts)
    np.testing.assert_allclose(made.logits[2:4], logits[2:4] + 0.5 * np.log([0.6, 0.2, 0.2]), rtol=1e-6)
    np.testing.assert_array_equal(made.labels[:4], [0, 0, 0, 0])


def label(labeler, weak, counts):
    phase = cross_entity.CrossEntity(None, None, settings(), core.types.LOCAL_CLIENTS, labeler, None)
    return cross_entity.label(phase, weak, jnp.full(6, -1), counts)


class Server(linear.Server):
    """Counts what it gave each client, in plain arithmetic."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.given = np.zeros((5, toy.CLASSES))

    def cross_entity_phase(self, federation, ids, visits):
        self.given[ids] *= self.h.options.decay
        self.ids, self.asked = ids, 0
        return super().cross_entity_phase(federation, ids, visits)

    def label(self, features, logits, truth, known, seen):
        turn, self.asked = self.asked % len(self.ids), self.asked + 1
        if turn == 0:  # an iteration begins
            shares = (self.given + 1) / (self.given + 1).sum(axis=1, keepdims=True)
            cohort = shares[self.ids].mean(axis=0) if self.h.options.divisor == 'cohort' else 1
            self.correction = np.log(shares / cohort)
        client, seen = self.ids[turn], []
        entries = super().label(features, logits + self.correction[client], truth, known, seen)
        self.given[client] += np.bincount(seen, minlength=toy.CLASSES)
        keep = self.h.options.all_anchors
        return [(key, label if sure or keep else toy.CLASSES, sure) for key, label, sure in entries]

    def terms(self, rows):
        return super().terms(rows._replace(labels=np.minimum(rows.labels, toy.CLASSES - 1)))  # not sure, so H is 0


def start(hparams, axis=core.types.LOCAL_CLIENTS):
    """A louder top, so that some pseudo-labels reach the threshold and some do not."""
    algorithm = algorithms.build('semisfl_prior', linear.model(), toy.VIEWS, hparams, axis)
    state = algorithm.init(rng.root(0))
    student = state.student._replace(top=jax.tree.map(lambda w: 2.0 * w, state.student.top))
    return algorithm, state.replace(student=student, teacher=student)


@pytest.mark.parametrize('prior', slow_but([{}, {'decay': 0.0, 'divisor': 'none', 'all_anchors': True}], {}))
def test_rounds_equal_the_ones_in_numpy(prior):
    hparams, data = settings(**prior), toy.federation(labels_at_clients=True)
    algorithm, state = start(hparams)
    server, run = Server(rng.root(0), hparams, state.student), jax.jit(algorithm.round)
    rates = []
    for ids, visits, k_s in ROUNDS:
        cohort = toy.cohort([*ids, 3], [*visits, 0])  # client 3 fails
        cohort = cohort._replace(weight=cohort.weight.at[-1].set(0.0))
        state, metrics = run(rng.root(0), state, data, cohort, jnp.int32(k_s))
        for key, value in server.run_round(data, ids, visits, k_s).items():
            np.testing.assert_allclose(metrics[key], value, rtol=2e-3, atol=1e-5, err_msg=key)
        linear.assert_close(state, server)
        np.testing.assert_array_equal(state.clients[:5], server.given)
        rates.append(float(metrics['mask_rate']))
    assert any(0 < rate < 1 for rate in rates), rates  # rows on both sides of the threshold were compared
    assert (server.given[[0, 1, 2, 4]].sum(axis=1) > 0).all()


@pytest.mark.slow
def test_two_shards_of_the_cohort_give_the_counts_of_one():
    """To the bit. Of four clients the last fails."""
    hparams, data = settings(), toy.federation(labels_at_clients=True)
    algorithm, _ = start(hparams)
    ids, visits, k_s = ROUNDS[-1]
    cohort = toy.cohort([*ids, 3], [*visits, 0])
    cohort = cohort._replace(weight=cohort.weight.at[-1].set(0.0))
    shards, first = start(hparams, core.clients.client_axis(mesh=types.SimpleNamespace(size=2), num_active=3))
    pairs = jax.tree.map(lambda x: x.reshape(2, 2), cohort)
    both = jax.vmap(shards.round, (None, None, None, 0, None), axis_name=core.clients.AXIS)
    sharded, _ = jax.jit(both)(rng.root(0), first, data, pairs, jnp.int32(k_s))
    alone = jax.tree.map(lambda x: x[:3], cohort)
    whole, _ = jax.jit(algorithm.round)(rng.root(0), first, data, alone, jnp.int32(k_s))
    for device in range(2):
        np.testing.assert_array_equal(sharded.clients[device], whole.clients)
    assert_trees_close(jax.tree.map(lambda x: x[0], sharded.student), whole.student, rtol=1e-4, atol=1e-6)


UNCORRECTED = [({}, 'true'), ({}, 'none'), ({'weight': 0.0, 'all_anchors': True}, 'method')]


@pytest.mark.parametrize(('prior', 'source'), slow_but(UNCORRECTED, UNCORRECTED[0]))
def test_where_nothing_is_corrected_rounds_are_those_of_semisfl(prior, source):
    """With true labels, with none, and with a weight of 0."""
    first, ends, data = start(settings())[1], [], toy.federation(labels_at_clients=True)
    for name, options in (('semisfl', None), ('semisfl_prior', Prior(**prior))):
        hparams = dataclasses.replace(settings(), options=options, pseudo_labels=source)
        algorithm = algorithms.build(name, linear.model(), toy.VIEWS, hparams)
        state = first.replace(clients=algorithm.init(rng.root(0)).clients)
        cohort = toy.cohort([0, 2, 4])
        state, metrics = jax.jit(algorithm.round)(rng.root(0), state, data, cohort, jnp.int32(2))
        ends.append(state.replace(clients=()))
    assert (metrics['mask_rate'] > 0) == (source != 'none')
    assert_trees_close(*ends, rtol=1e-5, atol=1e-6)
