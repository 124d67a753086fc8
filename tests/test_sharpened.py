"""The objective of Fed-SHVR against formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.algorithms.fed_shvr import FedShvr, confidence_rows, divergence_from_uniform, sharpen, sharpened_rule
from semisfl_jax.core.hparams import HParams

LOGITS = np.array([[2.0, -1.0, 0.5], [0.3, 0.2, 0.1], [-4.0, 5.0, 5.5], [0.0, 0.0, -80.0]])


def softmax(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize('exponent', [0.5, 1.0, 4.0 / 3.0, 6.0])
def test_sharpened_labels_are_powers_of_the_prediction(exponent):
    powers = softmax(LOGITS) ** exponent
    np.testing.assert_allclose(
        sharpen(jnp.array(LOGITS), exponent), powers / powers.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-30
    )


def test_the_limits_of_the_exponent():
    """Uniform at 0, the prediction at 1, one-hot at infinity and, up to rounding, at 1,000."""
    logits = jnp.array(LOGITS)
    np.testing.assert_allclose(sharpen(logits, 0.0), 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(sharpen(logits, 1.0), softmax(LOGITS), rtol=1e-5, atol=1e-30)
    one_hot = np.eye(3)[[0, 0, 2, 0]]  # of two equal ones, the first
    np.testing.assert_array_equal(sharpen(logits, jnp.inf), one_hot)
    np.testing.assert_allclose(sharpen(logits, 1e3)[:3], one_hot[:3], atol=1e-12)


def test_labels_minimize_their_two_terms():
    """alpha0 CE + alpha1 KL from uniform (Eq. 6) is higher at any other label."""
    alpha0, alpha1, draw = 0.9, 0.4, np.random.default_rng(0)
    p = softmax(LOGITS)[:3]

    def terms(v):
        return np.sum(-alpha0 * v * np.log(p) + alpha1 * v * np.log(3 * v), axis=1)

    best = np.asarray(sharpen(jnp.array(LOGITS[:3]), alpha0 / alpha1), np.float64)
    for _ in range(50):
        other = 0.9 * best + 0.1 * draw.dirichlet(np.ones(3), 3)
        assert np.all(terms(other) > terms(best))


def test_the_gradient_of_the_penalty():
    """p (log p - sum p log p) in the logits, and the value log K + sum p log p."""
    p = softmax(LOGITS[:3])
    entropy = np.sum(p * np.log(p), axis=1, keepdims=True)
    np.testing.assert_allclose(confidence_rows(jnp.array(LOGITS[:3])), np.log(3) + entropy[:, 0], rtol=1e-4)
    gradient = jax.grad(lambda x: jnp.sum(confidence_rows(x)))(jnp.array(LOGITS[:3]))
    np.testing.assert_allclose(gradient, p * (np.log(p) - entropy), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(divergence_from_uniform(jnp.array(p)), np.log(3) + entropy[:, 0], rtol=1e-4)


@pytest.mark.parametrize(('alpha0', 'alpha1', 'alpha2'), [(1.0, 0.75, 0.1), (0.5, 0.0, 0.3), (0.0, 0.75, 0.0)])
def test_the_rule(alpha0, alpha1, alpha2):
    """Three terms as means over the weighted rows; labels have no gradient; alpha0 = 0 leaves nothing to learn."""
    received, logits, weight = LOGITS[:3], LOGITS[[1, 2, 0]], np.array([1.0, 0.0, 1.0])
    rule = sharpened_rule(HParams(options=FedShvr(alpha0=alpha0, alpha1=alpha1, alpha2=alpha2)), 1.0)

    def value(logits):
        return rule(jnp.array(received), logits, jnp.array(weight))[0]

    p, q = softmax(received), softmax(logits)
    v = p ** (alpha0 / alpha1) if alpha1 else np.eye(3)[p.argmax(axis=1)]
    v /= v.sum(axis=1, keepdims=True)
    rows = -alpha0 * np.sum(v * np.log(q), axis=1) + alpha2 * np.sum(q * np.log(3 * q), axis=1)
    rows += alpha1 * np.sum(v * np.log(np.maximum(3 * v, 1e-300)), axis=1)
    np.testing.assert_allclose(value(jnp.array(logits)), (rows * weight).sum() / 2, rtol=1e-5)
    gradient = alpha0 * (q - v) + alpha2 * q * (np.log(q) - np.sum(q * np.log(q), axis=1, keepdims=True))
    np.testing.assert_allclose(jax.grad(value)(jnp.array(logits)), gradient * weight[:, None] / 2, rtol=1e-4, atol=1e-7)
    labels, every = rule(jnp.array(received), jnp.array(logits), jnp.array(weight))[1:]
    np.testing.assert_array_equal(labels, p.argmax(axis=1))
    assert np.all(every)
