"""Learning from unlabeled images in full-model methods, and the quality metrics of pseudo-labels.

FixMatch and UDA label a weak view and train on a strong one; `phases.objective` says which views the other rules use.
Labels are computed in evaluation mode (running BatchNorm statistics, no dropout), like those of SemiSFL's teacher; the
published code computes them in training mode, in one batch with the training rows (docs/ledger.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from semisfl_jax.core import losses
from semisfl_jax.core.hparams import HParams, Local
from semisfl_jax.core.types import Array, Metrics

TSA_SCHEDULES = ('off', 'linear', 'exp', 'log')
SOURCES = ('method', 'true', 'none')  # of the pseudo-labels: values of `config.pseudo_labels`
_CERTAIN = 1e9  # a logit so far above the others that the softmax is exactly one-hot

# A rule: (logits [B, K] of the labeler, of the model in training, weight [B]) -> loss [], labels [B], confident [B]
Rule = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


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


def assign(hparams: HParams, logits: Array, truth: Array) -> tuple[Array, Array]:
    """The pseudo-labels that a method trains on: classes [B] int32, and whether they count [B].

    `pseudo_labels` decides. 'method': the classes that `hard_labels` finds. 'true': the true classes, and all of them
    count. 'none': K, which is not a class, and none counts; cross-entropies and their gradients are then 0, and no two
    rows that count share a class.

    Args:
      hparams: settings.
      logits: [B, K] of the labeler.
      truth: [B] true classes, read with 'true' alone.
    """
    labels, confident = hard_labels(label_logits(hparams, logits, truth), confidence_threshold(hparams))
    return jnp.full_like(labels, logits.shape[-1]) if hparams.pseudo_labels == 'none' else labels, confident


def fixmatch(threshold: float) -> Rule:
    """FixMatch (Sohn et al., 2020): cross-entropy against hard labels on confident rows; the mean is over all rows."""

    def rule(weak: Array, strong: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, confident = hard_labels(weak, threshold)
        return losses.consistency(strong, labels, confident, weight), labels, confident

    return rule


def uda(threshold: float, temperature: float) -> Rule:
    """UDA (Xie et al., 2020): KL(p || q) from the weak view's sharpened distribution p to the strong view's q.

    p = softmax(logits / temperature), with no gradient. Confidence is measured before sharpening and must be above the
    threshold; rows that are not confident add 0 and count in the mean. The authors' scripts for images use 0.8 and 0.4.
    `threshold` 0 and `temperature` 1 disable masking and sharpening.
    """

    def rule(weak: Array, strong: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, _ = hard_labels(weak, threshold)
        confident = jnp.max(jax.nn.softmax(weak), axis=-1) > threshold
        target = jax.nn.log_softmax(weak / temperature)
        rows = jnp.sum(jnp.exp(target) * (target - jax.nn.log_softmax(strong)), axis=-1)
        return losses.row_mean(rows * confident, weight), labels, confident

    return rule


def mean_teacher(threshold: float = 0.0) -> Rule:
    """Mean teacher (Tarvainen and Valpola, 2017): the mean squared difference of the predicted probabilities.

    A mean over classes, too, as in its authors' code. Every row counts; with a `threshold` of infinity, none.
    """

    def rule(teacher: Array, student: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, every = hard_labels(teacher, threshold)
        rows = jnp.mean((jax.nn.softmax(student) - jax.nn.softmax(teacher)) ** 2, axis=-1)
        return losses.row_mean(rows * every if threshold else rows, weight), labels, every

    return rule


def build_rule(hparams: HParams) -> Rule:
    """The rule of `local.objective`, for logits from `label_logits`."""
    if hparams.local.objective == 'uda':
        return uda(confidence_threshold(hparams), hparams.uda.temperature)
    if hparams.local.objective == 'mean_teacher':
        return mean_teacher(math.inf if hparams.pseudo_labels == 'none' else 0.0)
    return fixmatch(confidence_threshold(hparams))


def ramp(local: Local, round_index: Array) -> Array | float:
    """The share of its weight that the unlabeled loss has in a round, up to 1 from round `local.ramp_rounds` on.

    Linear with 'pseudo_label' (Lee, 2013, Eq. 16), exp(-5 (1 - x)^2) at a share x of the ramp with 'mean_teacher'
    (Tarvainen and Valpola, 2017). Other objectives have none.
    """
    if not local.ramp_rounds or local.objective not in ('pseudo_label', 'mean_teacher'):
        return 1.0
    risen = jnp.minimum(round_index / local.ramp_rounds, 1.0)
    return risen if local.objective == 'pseudo_label' else jnp.exp(-5.0 * (1.0 - risen) ** 2)


def signal_threshold(schedule: str, progress: Array, classes: int) -> Array:
    """UDA's training signal annealing: labeled images count only while their label's probability is at most this.

    eta = alpha (1 - 1 / K) + 1 / K, with alpha = s, exp(5 (s - 1)) or 1 - exp(-5 s) for `schedule` 'linear', 'exp' or
    'log' and s = `progress` in [0, 1]. 'off' gives infinity.
    """
    alpha = {
        'off': lambda s: jnp.full_like(s, jnp.inf),
        'linear': lambda s: s,
        'exp': lambda s: jnp.exp(5.0 * (s - 1.0)),
        'log': lambda s: 1.0 - jnp.exp(-5.0 * s),
    }[schedule](progress)
    return alpha * (1.0 - 1.0 / classes) + 1.0 / classes


def count(labels: Array, confident: Array, truth: Array, unlabeled: Array) -> dict[str, Array]:
    """How many of the `unlabeled` rows [B] are confident, evaluable (their truth is known, not -1) and correct."""
    return {
        'unlabeled': jnp.sum(unlabeled),
        'confident': jnp.sum(unlabeled & confident),
        'evaluable': jnp.sum(unlabeled & confident & (truth >= 0)),
        'correct': jnp.sum(unlabeled & confident & (truth == labels)),
    }


def rates(counts: dict[str, Array]) -> Metrics:
    """The metrics of a round from the results of `count`, summed over batches and clients."""
    return {
        'mask_rate': counts['confident'] / jnp.maximum(counts['unlabeled'], 1),
        'pseudo_label_accuracy': counts['correct'] / counts['evaluable'],  # 0 / 0 = NaN: unknown
    }
