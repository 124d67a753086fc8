"""The teacher: the moving average of the student (Section III), its pseudo-labels and their quality.

Labels are computed in evaluation mode (running BatchNorm statistics, no dropout), unless `client_teacher_bn` is
'train'; the published code of FixMatch and UDA computes them in training mode, in one batch with the training rows
(docs/ledger.md).
"""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp

from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Array, Metrics, Tree

_CERTAIN = 1e9  # a logit so far above the others that the softmax is exactly one-hot


def ema_coefficient(t: Array, decay: float, warmup: bool) -> Array:
    """a_t of the t-th update, t = 1, 2, ….

    With warm-up, as in the authors' code, a_t = min(1 - 1 / (t + 1), decay): 1/2, 2/3, 3/4, … up to `decay`.
    Without it, as in the paper, a_t = decay from the start.
    """
    if not warmup:
        return jnp.asarray(decay, jnp.float32)
    return jnp.minimum(1.0 - 1.0 / (t + 1.0), decay)


def ema(teacher: Tree, student: Tree, keep: Array | float) -> Tree:
    """`keep` * teacher + (1 - `keep`) * student over parameters and BatchNorm statistics alike."""
    chex.assert_trees_all_equal_shapes_and_dtypes(teacher, student)
    return jax.tree.map(lambda a, b: keep * a + (1.0 - keep) * b, teacher, student)


def hard_labels(logits: Array, threshold: float) -> tuple[Array, Array]:
    """Hard pseudo-labels of logits [B, K]: classes [B] int32, and whether their probability reaches `threshold` [B]."""
    probabilities = jax.nn.softmax(logits)
    confident = jnp.max(probabilities, axis=-1) >= threshold
    return jnp.argmax(probabilities, axis=-1).astype(jnp.int32), confident


def confidence_threshold(hparams: HParams) -> float:
    """The probability that a pseudo-label must reach to count.

    With `pseudo_labels` 'method' it is the threshold, with 'true' 0 (all count), with 'none' infinity (none counts). A
    threshold of 1 would not exclude all: in float32 a softmax can be exactly 1.
    """
    return {'method': hparams.threshold, 'true': 0.0, 'none': math.inf}[hparams.pseudo_labels]


def label_logits(hparams: HParams, logits: Array, truth: Array) -> Array:
    """The logits [B, K] from which pseudo-labels are computed.

    They are the labeler's own `logits` or, with `pseudo_labels` 'true', logits whose softmax is one-hot at the true
    classes `truth` [B]. This is the only place where the truth of unlabeled images enters training.
    """
    if hparams.pseudo_labels != 'true':
        return logits
    return _CERTAIN * jax.nn.one_hot(truth, logits.shape[-1], dtype=logits.dtype)


def assign_pseudo_labels(hparams: HParams, logits: Array, truth: Array) -> tuple[Array, Array]:
    """The pseudo-labels that a method trains on: classes [B] int32, and whether they count [B].

    `pseudo_labels` decides. 'method': the classes that `hard_labels` finds. 'true': the true classes, and all of them
    count. 'none': K, which is not a class, and none counts; cross-entropies and their gradients are then 0, and no two
    rows that count share a class. `logits` [B, K] are the labeler's, `truth` [B] true classes, read with 'true' alone.
    """
    labels, confident = hard_labels(label_logits(hparams, logits, truth), confidence_threshold(hparams))
    return jnp.full_like(labels, logits.shape[-1]) if hparams.pseudo_labels == 'none' else labels, confident


def histogram(labels: Array, counted: Array, classes: int) -> Array:
    """Class counts of labels [..., B] int32, restricted to rows with counted [..., B] -> [..., K] float32."""
    return jnp.sum(jax.nn.one_hot(labels, classes) * counted[..., None], axis=-2)


def count_pseudo_labels(labels: Array, confident: Array, truth: Array, unlabeled: Array) -> dict[str, Array]:
    """How many of the `unlabeled` rows [B] are confident, evaluable (their truth is known, not -1) and correct."""
    return {
        'unlabeled': jnp.sum(unlabeled),
        'confident': jnp.sum(unlabeled & confident),
        'evaluable': jnp.sum(unlabeled & confident & (truth >= 0)),
        'correct': jnp.sum(unlabeled & confident & (truth == labels)),
    }


def pseudo_label_rates(counts: dict[str, Array]) -> Metrics:
    """The metrics of a round from the results of `count_pseudo_labels`, summed over batches and clients."""
    return {
        'mask_rate': counts['confident'] / jnp.maximum(counts['unlabeled'], 1),
        'pseudo_label_accuracy': counts['correct'] / counts['evaluable'],  # 0 / 0 = NaN: unknown
    }
