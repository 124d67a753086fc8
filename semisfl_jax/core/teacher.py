"""The teacher: the moving average of the student (Section III), its pseudo-labels and their quality.

It labels in evaluation mode (running BatchNorm statistics, no dropout), unless `client_teacher_bn` is 'train'. The
published code of FixMatch and UDA labels in training mode, in one batch with the training rows (docs/ledger.md).
"""

import math

import chex
import jax
import jax.numpy as jnp

from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Array, Metrics, Tree

_CERTAIN = 1e9  # a logit so far above the rest that the softmax is exactly one-hot


def ema_coefficient(t: Array, decay: float, warmup: bool) -> Array:
    """Returns a_t, the coefficient of the t-th update, t = 1, 2, ….

    With warm-up, as in the authors' code, a_t = min(1 - 1 / (t + 1), decay): 1/2, 2/3, 3/4, … up to `decay`. Without
    it, as in the paper, a_t = decay from the start.

    Args:
      t: [], from 1.
      decay: the paper's gamma.
      warmup: whether a_t rises to `decay`.

    Returns:
      [] float32.
    """
    if not warmup:
        return jnp.asarray(decay, jnp.float32)
    return jnp.minimum(1.0 - 1.0 / (t + 1.0), decay)


def ema(teacher: Tree, student: Tree, keep: Array | float) -> Tree:
    """Averages parameters and BatchNorm statistics alike: `keep` * teacher + (1 - `keep`) * student.

    Args:
      teacher: any pytree.
      student: a pytree of the same structure, shapes and types.
      keep: [], the teacher's share.

    Returns:
      The new teacher.
    """
    chex.assert_trees_all_equal_shapes_and_dtypes(teacher, student)
    return jax.tree.map(lambda a, b: keep * a + (1.0 - keep) * b, teacher, student)


def hard_labels(logits: Array, threshold: float) -> tuple[Array, Array]:
    """Takes the most probable class of every row.

    Args:
      logits: [B, K].
      threshold: probability from which a label is confident.

    Returns:
      Classes [B] int32, and confident [B] bool: their probability reaches the threshold.
    """
    probabilities = jax.nn.softmax(logits)
    confident = jnp.max(probabilities, axis=-1) >= threshold
    return jnp.argmax(probabilities, axis=-1).astype(jnp.int32), confident


def confidence_threshold(hparams: HParams) -> float:
    """Returns the probability that a pseudo-label must reach to count.

    `pseudo_labels` decides: 'method' takes `threshold`, 'true' 0 (all count), 'none' infinity (none counts). A
    threshold of 1 would not exclude all: in float32 a softmax can be exactly 1.
    """
    return {'method': hparams.threshold, 'true': 0.0, 'none': math.inf}[hparams.pseudo_labels]


def label_logits(hparams: HParams, logits: Array, truth: Array) -> Array:
    """Returns the logits from which pseudo-labels are computed.

    With `pseudo_labels` 'true', their softmax is one-hot at the true class. Only here does the truth of unlabeled
    images enter training.

    Args:
      hparams: only `pseudo_labels` is read.
      logits: [B, K], the labeler's own.
      truth: [B] int32, the true classes.

    Returns:
      [B, K].
    """
    if hparams.pseudo_labels != 'true':
        return logits
    return _CERTAIN * jax.nn.one_hot(truth, logits.shape[-1], dtype=logits.dtype)


def assign_pseudo_labels(hparams: HParams, logits: Array, truth: Array) -> tuple[Array, Array]:
    """Assigns the pseudo-labels that a method trains on, as `pseudo_labels` says.

    'method' takes the classes that `hard_labels` picks, 'true' the true classes, and all of them count. 'none' assigns
    K, which is not a class, and none counts: cross-entropies and their gradients are then 0, and no two rows that count
    share a class.

    Args:
      hparams: `pseudo_labels` and `threshold` are read.
      logits: [B, K], the labeler's.
      truth: [B] int32, the true classes, read only with 'true'.

    Returns:
      Classes [B] int32, and [B] bool: whether each counts.
    """
    labels, confident = hard_labels(label_logits(hparams, logits, truth), confidence_threshold(hparams))
    return jnp.full_like(labels, logits.shape[-1]) if hparams.pseudo_labels == 'none' else labels, confident


def histogram(labels: Array, counted: Array, classes: int) -> Array:
    """Counts the labels of each class.

    Args:
      labels: [..., B] int32.
      counted: [..., B] bool, the rows to count.
      classes: K.

    Returns:
      [..., K] float32.
    """
    return jnp.sum(jax.nn.one_hot(labels, classes) * counted[..., None], axis=-2)


def count_pseudo_labels(labels: Array, confident: Array, truth: Array, unlabeled: Array) -> dict[str, Array]:
    """Counts the unlabeled rows, the confident ones, and of the confident ones the evaluable and the correct ones.

    Args:
      labels: [B] int32, the pseudo-labels.
      confident: [B] bool.
      truth: [B] int32; -1 is unknown; such a row is not evaluable.
      unlabeled: [B] bool, the rows to count.

    Returns:
      Counts [] by name.
    """
    return {
        'unlabeled': jnp.sum(unlabeled),
        'confident': jnp.sum(unlabeled & confident),
        'evaluable': jnp.sum(unlabeled & confident & (truth >= 0)),
        'correct': jnp.sum(unlabeled & confident & (truth == labels)),
    }


def pseudo_label_rates(counts: dict[str, Array]) -> Metrics:
    """Computes a round's metrics from the counts of `count_pseudo_labels`, summed over batches and clients."""
    return {
        'mask_rate': counts['confident'] / jnp.maximum(counts['unlabeled'], 1),
        'pseudo_label_accuracy': counts['correct'] / counts['evaluable'],  # 0 / 0 = NaN: unknown
    }
