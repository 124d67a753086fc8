"""The loss terms of SemiSFL, as pure functions of rows.

Means are weighted: 1 for a row of a participating client, 0 for padding. A caller that holds only some of the rows
passes the count of all rows and gets its rows' share of the mean.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array


class References(NamedTuple):
    """The rows that a contrastive loss compares its anchors with."""

    keys: Array  # [T, P] unit rows
    labels: Array  # [T] int32, -1 for an empty slot
    confident: Array  # [T] bool, may serve as a positive
    mask: Array  # [T] bool, counts in the denominator


def concatenate(*parts: References) -> References:
    """Concatenates references along T."""
    return References(*(jnp.concatenate(field) for field in zip(*parts, strict=True)))


def row_mean(values: Array, weight: Array, count: Array | None = None) -> Array:
    """Averages [R] values under [R] weights; the mean is 0 if all weights are 0.

    Args:
      values: [R].
      weight: [R].
      count: the sum of the weights of all rows, if `values` holds only some of them; None for the sum of `weight`.

    Returns:
      The mean []; with `count`, the share that these rows contribute to it.
    """
    chex.assert_equal_shape([values, weight])
    return jnp.sum(values * weight) / jnp.maximum(jnp.sum(weight) if count is None else count, 1.0)


def cross_entropy_rows(logits: Array, labels: Array) -> Array:
    """Computes the cross-entropy of every row.

    Args:
      logits: [R, K].
      labels: [R] int32.

    Returns:
      [R].
    """
    chex.assert_shape(labels, logits.shape[:1])
    log_probabilities = jax.nn.log_softmax(logits)
    # No gather: its gradient is a scatter, for which accelerators sort the labels first.
    chosen = labels[:, None] == jnp.arange(logits.shape[1])
    return -jnp.sum(jnp.where(chosen, log_probabilities, 0.0), axis=-1)


def cross_entropy(logits: Array, labels: Array, weight: Array) -> Array:
    """Computes the mean cross-entropy, the H of the supervised phase (Eq. 4).

    Args:
      logits: [R, K].
      labels: [R] int32.
      weight: [R].

    Returns:
      [].
    """
    return row_mean(cross_entropy_rows(logits, labels), weight)


def consistency_rows(logits: Array, pseudo_labels: Array, confident: Array) -> Array:
    """Computes the consistency regularization of the cross-entity phase (Eq. 1): cross-entropy with hard pseudo-labels.

    Rows that are not confident add 0 but count in the mean, as in FixMatch and the authors' code.

    Args:
      logits: [R, K], the student's on strong views.
      pseudo_labels: [R] int32, the teacher's on weak views.
      confident: [R] bool.

    Returns:
      [R].
    """
    chex.assert_equal_shape([pseudo_labels, confident])
    return cross_entropy_rows(logits, pseudo_labels) * confident


def contrastive_rows(
    anchors: Array, labels: Array, references: References, temperature: float, comparable: Array | None = None
) -> Array:
    """Computes the supervised-contrastive loss (Eq. 3) or the clustering regularization (Eq. 5) of every anchor.

    For anchor j with positives P_j, the confident references that share its label:

        C_j = -1 / max(1, |P_j|) * sum_{p in P_j} log(exp(z_j . k_p / kappa) / S_j)
        S_j = sum_{a in A} exp(z_j . k_a / kappa)

    A is the set of all references in `mask`, confident or not. An anchor without a positive has C_j = 0.

    Args:
      anchors: [R, P] unit rows z.
      labels: [R] int32, labels or pseudo-labels of the anchors.
      references: T references.
      temperature: kappa.
      comparable: [R, T] bool, False excludes a reference for an anchor; None compares all.

    Returns:
      C [R].
    """
    chex.assert_shape(labels, anchors.shape[:1])
    chex.assert_shape(references.keys, (None, anchors.shape[1]))
    chex.assert_shape([references.labels, references.confident, references.mask], references.keys.shape[:1])
    similarity = anchors @ references.keys.T / temperature  # [R, T]
    mask = references.mask[None, :]
    if comparable is not None:
        mask = mask & comparable
    similarity = jnp.where(mask, similarity, -jnp.inf)
    highest = jax.lax.stop_gradient(jnp.max(similarity, axis=-1, keepdims=True))
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)  # an anchor may have no reference at all
    total = jnp.sum(jnp.exp(similarity - highest), axis=-1)  # [R]
    log_total = jnp.log(jnp.where(total > 0, total, 1.0)) + highest[:, 0]
    positive = mask & references.confident[None, :] & (labels[:, None] == references.labels[None, :])
    count = jnp.sum(positive, axis=-1)
    attraction = jnp.sum(jnp.where(positive, similarity, 0.0), axis=-1)
    return (count * log_total - attraction) / jnp.maximum(count, 1)
