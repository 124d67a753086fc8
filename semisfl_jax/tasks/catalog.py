"""The tasks by name, as in `data.tasks`, and classification: one label for an image, judged by accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from semisfl_jax.core import losses
from semisfl_jax.core.errors import UserError, use_one_of
from semisfl_jax.core.types import Array
from semisfl_jax.tasks import dense_losses, edges, scores
from semisfl_jax.tasks.task import ACCURACY, AP, IGNORED, IOU, MIOU, ODSF, RMSE, Score, Scorer, Task


def _count_correct(logits: Array, labels: Array, valid: Array, sizes: Array | None = None) -> tuple[Array, Array]:
    """The images whose largest logit is the label's, and all. Labels have no size."""
    correct = jnp.argmax(logits, axis=-1) == labels
    return jnp.sum(correct & valid, dtype=jnp.int32), jnp.sum(valid, dtype=jnp.int32)


def _accuracy(counts: Any) -> dict[str, float]:
    correct, total = (int(np.sum(count)) for count in counts)
    return {ACCURACY.name: correct / total}


def _likely_label(logits: Array, threshold: float) -> Array:
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
        scorer=Scorer(_count_correct, _accuracy),
        pseudo_label=_likely_label,
    )


# --- dense tasks

SHOWN = 0.5  # probability from which figures show a peak as a keypoint


def _classes(name: str, title: str) -> Callable[[int], Task]:
    """A task of classes [B, H, W] below `outputs`."""

    def build(outputs: int) -> Task:
        return Task(
            name=name,
            title=title,
            outputs=outputs,
            dense=True,
            loss=dense_losses.cross_entropy,
            score=MIOU,
            scorer=scores.confusion(outputs),
            show=lambda logits: np.argmax(logits, axis=-1).astype(np.uint8),
            pseudo_label=_likely_class,
            largest=outputs - 1,
            constant=lambda counts: np.eye(outputs, dtype=np.float32)[np.argmax(counts[:outputs])],
        )

    return build


def _dense(name: str, constant: Callable[[Any], Any] | None = None, **fields: Any) -> Callable[[int], Task]:
    """A dense task that is not of classes; `constant` None: probabilities of 1/2, with which a score at the best
    threshold takes all pixels or none, whichever is better."""

    def build(outputs: int) -> Task:
        undecided = constant or (lambda counts: np.zeros(outputs, np.float32))
        return Task(name=name, title=name.capitalize(), outputs=outputs, dense=True, constant=undecided, **fields)

    return build


def _likely_class(logits: Array, threshold: float) -> Array:
    """The class with the largest logit."""
    confident = jnp.max(jax.nn.softmax(logits), axis=-1) >= threshold
    return jnp.where(confident, jnp.argmax(logits, axis=-1), IGNORED).astype(jnp.uint8)


def _likely_side(logits: Array, threshold: float) -> Array:
    """1 for a positive logit, 0 for another."""
    logit = logits[..., 0]
    confident = jax.nn.sigmoid(jnp.abs(logit)) >= threshold
    return jnp.where(confident, logit > 0, IGNORED).astype(jnp.uint8)


def _keypoints(outputs: int) -> Task:
    fields: dict[str, Any] = {'loss': dense_losses.keypoints, 'score': AP, 'scorer': scores.keypoints()}
    return _dense('keypoints', largest=outputs, show=_points, **fields)(outputs)


def _shown_depth(depth: Any) -> Any:
    return np.clip(depth[..., 0], 0, 1) * dense_losses.DEPTH_STEPS


def _mean_depth(counts: Any) -> Any:
    return np.array([counts @ np.arange(len(counts)) / counts.sum() / dense_losses.DEPTH_STEPS], np.float32)


def _probability(logits: Any) -> Any:
    return scipy.special.expit(logits[..., 0])


def _points(logits: Any) -> Any:
    """The type of the highest logit on pixels that are a peak of its map and probable, elsewhere 0."""
    import scipy.ndimage  # slow to import, and only pictures of keypoints need it

    peak = logits == scipy.ndimage.maximum_filter(logits, size=(1, 3, 3, 1), mode='constant', cval=-np.inf)
    probability = np.where(peak, scipy.special.expit(logits), 0)
    kind = np.argmax(probability, axis=-1) + 1
    return np.where(probability.max(axis=-1) >= SHOWN, kind, 0).astype(np.uint8)


_BINARY: dict[str, Any] = {'show': _probability, 'pseudo_label': _likely_side, 'largest': 1}
# name -> builder, fewest and most outputs
_TASKS: dict[str, tuple[Callable[[int], Task], int, int]] = {
    'classification': (classification, 2, 2**31 - 1),
    'semseg': (_classes('semseg', 'Semantic segmentation'), 2, IGNORED),
    'parts': (_classes('parts', 'Part segmentation'), 2, IGNORED),
    'stuff': (_classes('stuff', 'Stuff segmentation'), 2, IGNORED),
    'saliency': (
        _dense('saliency', loss=dense_losses.balanced_bce, score=IOU, scorer=scores.saliency(), **_BINARY),
        1,
        1,
    ),
    'edges': (_dense('edges', loss=dense_losses.weighted_bce, score=ODSF, scorer=edges.scorer(), **_BINARY), 1, 1),
    'depth': (
        _dense('depth', _mean_depth, loss=dense_losses.l1, score=RMSE, scorer=scores.depth(), show=_shown_depth),
        1,
        1,
    ),
    'keypoints': (_keypoints, 1, IGNORED - 1),
}
NAMES = tuple(_TASKS)


def score(name: str) -> Score:
    """The score that counts in a task, one of NAMES."""
    return smallest(name).score


def make(name: str, outputs: int) -> Task:
    """The task `name` with `outputs`: classes, or types of keypoints; 1 in saliency, edges and depth; UserError: the
    name is unknown, or the task cannot have so many outputs.
    """
    if name not in _TASKS:
        raise UserError(f"task '{name}' is unknown; {use_one_of(name, NAMES)}")
    build, fewest, most = _TASKS[name]
    if not fewest <= outputs <= most:
        demand = f'{fewest}' if fewest == most else f'{fewest} to {most}'
        raise UserError(f"task '{name}' cannot have {outputs} outputs per pixel or image: use {demand}")
    return build(outputs)


def smallest(name: str) -> Task:
    """The task `name` with the fewest outputs, for what does not depend on them: its title and its score."""
    build, fewest, _ = _TASKS[name]
    return build(fewest)
