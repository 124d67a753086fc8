"""Losses against NumPy written from the formulas, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.core import losses
from semisfl_jax.core.losses import References


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def unit_rows(rng, count, width):
    rows = rng.normal(size=(count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def mean_contrastive(anchors, labels, references, kappa, weight, comparable=None):
    return losses.row_mean(losses.contrastive_rows(anchors, labels, references, kappa, comparable), weight)


def contrastive_by_hand(anchors, labels, keys, key_labels, confident, mask, kappa, comparable=None):
    """Eq. 3 anchor by anchor."""
    rows = []
    for j, z in enumerate(anchors.astype(np.float64)):
        seen = [a for a in range(len(keys)) if mask[a] and (comparable is None or comparable[j, a])]
        positives = [a for a in seen if confident[a] and key_labels[a] == labels[j]]
        if not positives:
            rows.append(0.0)
            continue
        denominator = sum(np.exp(z @ keys[a] / kappa) for a in seen)
        rows.append(-sum(z @ keys[a] / kappa - np.log(denominator) for a in positives) / len(positives))
    return np.array(rows)


def test_rows_of_padding_do_not_count():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 4, 6)
    weight = np.array([1, 1, 0, 1, 0, 0], np.float32)
    expected = -np.mean(log_softmax(logits)[[0, 1, 3], labels[[0, 1, 3]]])
    np.testing.assert_allclose(losses.cross_entropy(logits, labels, weight), expected, rtol=1e-5)
    assert losses.cross_entropy(logits, labels, np.zeros(6, np.float32)) == 0.0


@pytest.mark.parametrize('seed', range(2))
def test_the_contrastive_loss_equals_the_formula(seed):
    rng = np.random.default_rng(seed)
    anchors, keys = unit_rows(rng, 6, 16), unit_rows(rng, 20, 16)
    labels, key_labels = rng.integers(0, 4, 6), rng.integers(-1, 4, 20)
    confident, mask = rng.random(20) < 0.6, rng.random(20) < 0.8
    comparable = rng.random((6, 20)) < 0.9 if seed % 2 else None
    expected = contrastive_by_hand(anchors, labels, keys, key_labels, confident, mask, 0.2, comparable)
    got = mean_contrastive(anchors, labels, References(keys, key_labels, confident, mask), 0.2, jnp.ones(6), comparable)
    np.testing.assert_allclose(got, expected.mean(), rtol=1e-5, atol=1e-6)


def test_contrastive_is_zero_without_positives_and_finite_without_references():
    rng = np.random.default_rng(3)
    anchors, keys = unit_rows(rng, 4, 8), unit_rows(rng, 5, 8)
    labels = np.zeros(4, int)
    nobody, everybody = np.zeros(5, bool), np.ones(5, bool)

    def value(anchors, confident, mask, key_labels):
        references = References(keys, key_labels, confident, mask)
        return mean_contrastive(anchors, labels, references, 0.2, jnp.ones(4))

    assert value(anchors, everybody, everybody, np.ones(5, int)) == 0.0  # other classes only
    assert value(anchors, nobody, everybody, np.zeros(5, int)) == 0.0  # right class, unconfident
    loss, gradient = jax.value_and_grad(value)(jnp.asarray(anchors), nobody, nobody, np.zeros(5, int))
    assert loss == 0.0
    np.testing.assert_array_equal(gradient, np.zeros((4, 8)))
