"""Queues against a Python deque, and what each policy shows to each loss."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.core import queue
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.losses import References


def batch(start, count, confident=True):
    """References whose key and label tell their number: start, start + 1, …"""
    numbers = np.arange(start, start + count)
    keys = np.repeat(numbers[:, None], 2, axis=1).astype(np.float32)
    return References(keys, numbers.astype(np.int32), np.full(count, confident), np.ones(count, bool))


@pytest.mark.parametrize('size', [3, 8])
@pytest.mark.parametrize('counts', [(3, 5, 1, 7), (12, 2)])
@pytest.mark.parametrize('skipped', [None, 3])  # every second or third row is of a client that is not there
def test_ring_is_a_deque(size, counts, skipped):
    ring, expected, start, pushed = queue.empty(size, 2), deque(maxlen=size), 0, 0
    for count in counts:
        rows = batch(start, count, confident=start % 2 == 0)
        mask = np.arange(count) % skipped > 0 if skipped else np.ones(count, bool)
        ring = queue.push(ring, rows.keys, rows.labels, rows.confident, mask if skipped else None)
        expected.extend(zip(rows.labels[mask].tolist(), rows.confident[mask].tolist(), strict=True))
        start, pushed = start + count, pushed + int(mask.sum())
    filled = np.flatnonzero(np.asarray(ring.labels) >= 0)
    got = sorted((int(ring.labels[i]), bool(ring.confident[i])) for i in filled)
    assert got == sorted(expected)
    np.testing.assert_array_equal(ring.keys[filled, 0], ring.labels[filled])
    assert int(ring.head) == pushed % size


def labels_seen(references):
    """Labels in the denominator, and those that may be positives."""
    seen = np.asarray(references.mask)
    labels, confident = np.asarray(references.labels), np.asarray(references.confident)
    return sorted(labels[seen].tolist()), sorted(labels[seen & confident & (labels >= 0)].tolist())


def build(policy, size, width=2, stride=10, empty_slots='auto', key=None):
    options = {'queue': policy, 'queue_size': size, 'queue_stride': stride, 'queue_empty_slots': empty_slots}
    return queue.build(HParams(**options), width, key)


def test_two_levels_show_each_loss_its_keys():
    state = build('two_level', 4, stride=2).push_supervised(batch(0, 3))
    assert labels_seen(state.supervised_references(batch(10, 1))) == ([0, 1, 2, 10],) * 2
    state = state.push_unlabeled(batch(20, 2, confident=False), jnp.int32(0))
    seen, positive = labels_seen(state.cross_entity_references(batch(30, 1)))
    assert seen == [0, 1, 2, 20, 21, 30]
    assert positive == [0, 1, 2, 30]  # unconfident keys are negatives
    assert labels_seen(state.supervised_references(batch(10, 1)))[0] == [0, 1, 2, 10]  # U is not looked at
    state = state.push_unlabeled(batch(40, 2), jnp.int32(1))  # second iteration: enters both levels
    supervised, unlabeled = state.rings
    assert sorted(np.asarray(supervised.labels).tolist()) == [1, 2, 40, 41]
    assert sorted(np.asarray(unlabeled.labels).tolist()) == [20, 21, 40, 41]


def test_single_ring_reproduces_the_code():
    """Supervised keys are positives in the supervised loss and only negatives in the other; empty slots are zeros."""
    state = build('single_ring', 6).push_supervised(batch(0, 2))
    seen, positive = labels_seen(state.supervised_references(batch(10, 1)))
    assert seen == [-1, -1, -1, -1, 0, 1, 10]
    assert positive == [0, 1, 10]
    references = state.cross_entity_references(batch(10, 1))
    seen, positive = labels_seen(references)
    assert seen == [-1, -1, -1, -1, 0, 1, 10]
    assert positive == [10]
    np.testing.assert_array_equal(np.asarray(references.keys)[np.asarray(references.labels) < 0], 0.0)
    state = state.push_unlabeled(batch(20, 5), jnp.int32(0))  # wraps over the first supervised key
    seen, positive = labels_seen(state.cross_entity_references(batch(10, 1)))
    assert seen == [1, 10, 20, 21, 22, 23, 24]
    assert positive == [10, 20, 21, 22, 23, 24]


def test_single_ring_starts_as_random_unit_vectors():
    """As the authors' does: negatives until keys have taken their slots, zeros after the first emptying."""
    state, other = (build('single_ring', 6, 4, key=jax.random.key(seed)) for seed in (0, 1))
    np.testing.assert_allclose(np.linalg.norm(state.rings[0].keys, axis=1), 1.0, rtol=1e-6)
    assert not np.array_equal(state.rings[0].keys, other.rings[0].keys)
    state = state.push_supervised(References(jnp.zeros((2, 4)), jnp.arange(2), jnp.ones(2, bool), None))
    batch = References(jnp.ones((1, 4)), jnp.array([1]), jnp.array([True]), jnp.array([True]))
    for references in (state.supervised_references(batch), state.cross_entity_references(batch)):
        np.testing.assert_array_equal(references.keys[1:3], 0.0)
        np.testing.assert_array_equal(references.keys[3:], state.rings[0].keys[2:])
        np.testing.assert_array_equal(references.labels, [1, 0, 1, -1, -1, -1, -1])
        assert references.mask.all()
    assert not np.any(state.emptied().rings[0].keys)


def test_what_a_round_without_clients_leaves():
    for name, stays in (('single_ring', True), ('two_level', False)):
        after = build(name, 4).push_supervised(batch(0, 3)).after_pre_round()
        assert int(jnp.sum(after.rings[0].labels >= 0)) == 3 * stays
