"""Classification: one label for an image, judged by accuracy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import losses
from semisfl_jax.core.types import Array
from semisfl_jax.tasks.task import ACCURACY, Scorer, Task


def _count(logits: Array, labels: Array, valid: Array, sizes: Array | None = None) -> tuple[Array, Array]:
    """The images whose largest logit is the label's, and all. Labels have no size."""
    correct = jnp.argmax(logits, axis=-1) == labels
    return jnp.sum(correct & valid, dtype=jnp.int32), jnp.sum(valid, dtype=jnp.int32)


def _finish(counts: Any) -> dict[str, float]:
    correct, total = (int(np.sum(count)) for count in counts)
    return {ACCURACY.name: correct / total}


def _pseudo_label(logits: Array, threshold: float) -> Array:
    probabilities = jax.nn.softmax(logits)
    confident = jnp.max(probabilities, axis=-1) >= threshold
    return jnp.where(confident, jnp.argmax(logits, axis=-1), -1).astype(jnp.int32)


def classification(classes: int) -> Task:
    """The task of labels below `classes`."""
    return Task(
        name='classification',
        title='Classification',
        outputs=classes,
        dense=False,
        loss=lambda logits, labels: jnp.mean(losses.cross_entropy_rows(logits, labels)),
        score=ACCURACY,
        scorer=Scorer(_count, _finish),
        pseudo_label=_pseudo_label,
    )
