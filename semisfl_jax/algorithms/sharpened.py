"""Soft pseudo-labels that are sharpened, and regularized predictions: the local objective of Fed-SHVR
(Wang et al., 2021, Section II)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array


def sharpen(logits: Array, exponent: Array | float) -> Array:
    """Predictions to a power, normalized (Eq. 8): logits [B, K] -> p_j^exponent / sum_i p_i^exponent [B, K].

    0 gives the uniform distribution, 1 the prediction itself, infinity one-hot labels (of the first of equal classes).
    """
    hard = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
    finite = jnp.where(jnp.isinf(exponent), 1.0, exponent)
    return jnp.where(jnp.isinf(exponent), hard, jax.nn.softmax(finite * jax.nn.log_softmax(logits)))


def divergence_from_uniform(probabilities: Array) -> Array:
    """KL(p || u) of rows [B, K] from the uniform distribution [B]: log K minus the entropy."""
    return jnp.log(probabilities.shape[-1]) - jnp.sum(jax.scipy.special.entr(probabilities), axis=-1)


def confidence_rows(logits: Array) -> Array:
    """KL(f || u) of the predictions f = softmax(logits) [B, K]: [B]. Its gradient in the logits is
    f (log f - sum f log f)."""
    log_f = jax.nn.log_softmax(logits)
    return jnp.log(logits.shape[-1]) + jnp.sum(jnp.exp(log_f) * log_f, axis=-1)


def sharpened_rows(received: Array, logits: Array, alpha0: Array | float, alpha1: float, alpha2: float) -> Array:
    """The unlabeled terms of a client's objective by rows [B] (Eq. 5a, 6 and 9):

    alpha0 CE(f(u), v) + alpha1 KL(v || uniform) + alpha2 KL(f(u) || uniform), with the labels
    v = f'(u)^(alpha0 / alpha1), normalized, that minimize the first two terms at the received model f' (Eq. 8).

    `alpha1` 0 is the limit of one-hot labels. The second term has no gradient, and is part of the objective's value.

    Args:
      received: logits [B, K] of the received model.
      logits: [B, K] of the model in training.
      alpha0: [], may be traced; at 0 the labels are uniform, and weigh nothing.
      alpha1: strength of the labels' regularization.
      alpha2: strength of the confidence penalty.
    """
    targets = sharpen(received, jnp.asarray(alpha0) / alpha1 if alpha1 else jnp.inf)
    rows = -alpha0 * jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)
    return rows + alpha1 * divergence_from_uniform(targets) + alpha2 * confidence_rows(logits)
