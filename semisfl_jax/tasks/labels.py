"""Scores of classification: counts in the compiled evaluation, and arithmetic on the host.

K classes, N clients. Images of unknown class count nowhere. A score over no images is nan.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import losses
from semisfl_jax.core.types import Array
from semisfl_jax.tasks.scores import share
from semisfl_jax.tasks.task import (
    ACCURACY,
    CLIENT_ACCURACY,
    CLIENT_STD,
    CLIENT_WORST,
    EVAL_LOSS,
    MACRO_F1,
    PER_CLASS,
    Scorer,
)


def scorer(classes: int) -> Scorer:
    """Builds the scorer of labels below `classes`; PER_CLASS is [K], nan for a class without images."""

    def count(logits: Array, labels: Array, valid: Array, sizes: Array | None = None) -> tuple[Array, Array]:
        """Counts images by true class, by prediction, and by both if they agree, [3, K] int32; sums their losses []."""
        predicted, known = jnp.argmax(logits, axis=-1), valid & (labels >= 0)
        kinds = jnp.stack([labels, predicted, jnp.where(predicted == labels, labels, -1)])
        counts = jnp.sum((kinds[..., None] == jnp.arange(classes)) & known[:, None], axis=1, dtype=jnp.int32)
        return counts, jnp.sum(jnp.where(known, losses.cross_entropy_rows(logits, labels), 0))

    def finish(counted: Any) -> dict[str, Any]:
        images, predicted, correct = counted[0].sum(axis=0, dtype=np.int64)
        total = int(images.sum())
        with np.errstate(invalid='ignore'):  # 0 / 0
            recall, f1 = correct / images, 2 * correct / (images + predicted)
        return {
            ACCURACY.name: share(int(correct.sum()), total),
            MACRO_F1.name: share(np.nansum(f1), np.isfinite(f1).sum()),
            EVAL_LOSS.name: share(counted[1].sum(dtype=np.float64), total),
            PER_CLASS.name: recall,
        }

    return Scorer(count, finish)


def of_clients(per_class: np.ndarray, held: np.ndarray) -> dict[str, float]:
    """Computes the accuracy of each client, were its images classified as those of the test set: over clients.

    It is the mean of the accuracies of classes, weighted by the images that the client holds of each. Classes without
    test images do not count, nor do clients that hold images of no other class.

    Args:
      per_class: [K] accuracies, nan for a class without test images.
      held: [N, K] images, or [N, k] if clients hold none of the last classes.

    Returns:
      Mean, standard deviation, and mean of the worst tenth of the clients, rounded up.
    """
    per_class = per_class[: held.shape[1]]
    counted = held * np.isfinite(per_class)
    images = counted.sum(axis=1)
    right = (counted * np.nan_to_num(per_class)).sum(axis=1)
    accuracy = np.sort(right[images > 0] / images[images > 0])
    if not len(accuracy):
        return dict.fromkeys((CLIENT_ACCURACY.name, CLIENT_STD.name, CLIENT_WORST.name), float('nan'))
    return {
        CLIENT_ACCURACY.name: float(accuracy.mean()),
        CLIENT_STD.name: float(accuracy.std()),
        CLIENT_WORST.name: float(accuracy[: -(-len(accuracy) // 10)].mean()),
    }
