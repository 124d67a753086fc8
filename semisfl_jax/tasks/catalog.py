"""Dense tasks by name, as in `data.tasks`, and classification: one label per image, scored by accuracy."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from semisfl_jax.base.errors import UserError, use_one_of
from semisfl_jax.core import losses
from semisfl_jax.core.types import Array
from semisfl_jax.tasks import dense_losses, edges, labels, objects, scores
from semisfl_jax.tasks.task import ACCURACY, AP, DENSE, IGNORED, IOU, MIOU, ODSF, RMSE, Score, Scorer, Task


def classification(classes: int) -> Task:
    """Builds the task of labels below `classes`."""
    return Task(
        name='classification',
        title='Classification',
        outputs=classes,
        dense=False,
        loss=lambda logits, truth: jnp.mean(losses.cross_entropy_rows(logits, truth)),
        score=ACCURACY,
        scorer=labels.scorer(classes),
    )


# --- dense tasks

SHOWN = 0.5  # lowest probability of a peak that figures show as a keypoint


def _dense(name: str, outputs: int, title: str = '', **fields: Any) -> Task:
    """Builds a dense task.

    The default `constant` is logits of 0, a probability of 1/2, so that a score at the best threshold takes all pixels
    or none, whichever is better.
    """
    fields.setdefault('constant', lambda counts: np.zeros(outputs, np.float32))
    return Task(name=name, title=title or name.capitalize(), outputs=outputs, dense=True, **fields)


def _classes(name: str, title: str, outputs: int) -> Task:
    """Builds a task of classes [B, H, W] below `outputs`."""
    return _dense(
        name,
        outputs,
        title,
        loss=dense_losses.cross_entropy,
        score=MIOU,
        scorer=scores.confusion(outputs),
        show=lambda logits: np.argmax(logits, axis=-1).astype(np.uint8),
        largest=outputs - 1,
        constant=lambda counts: np.eye(outputs, dtype=np.float32)[np.argmax(counts[:outputs])],
    )


def _binary(name: str, loss: Callable[[Array, Array], Array], score: Score, scorer: Scorer, outputs: int) -> Task:
    """Builds a task of pixels that are 0 or 1."""
    return _dense(name, outputs, loss=loss, score=score, scorer=scorer, show=_probability, largest=1)


def _depth(outputs: int) -> Task:
    return _dense(
        'depth',
        outputs,
        loss=dense_losses.l1,
        score=RMSE,
        scorer=scores.depth(),
        show=lambda depth: np.clip(depth[..., 0], 0, 1) * dense_losses.DEPTH_STEPS,
        constant=_mean_depth,
    )


def _keypoints(outputs: int) -> Task:
    loss, scorer = dense_losses.keypoints, scores.keypoints()
    return _dense('keypoints', outputs, loss=loss, score=AP, scorer=scorer, show=_points, largest=outputs)


def _mean_depth(counts: Any) -> Any:
    return np.array([counts @ np.arange(len(counts)) / counts.sum() / dense_losses.DEPTH_STEPS], np.float32)


def _expit(logits: Any) -> Any:
    from scipy import special  # slow to import, and only figures of dense tasks need it

    return special.expit(logits)


def _probability(logits: Any) -> Any:
    return _expit(logits[..., 0])


def _points(logits: Any) -> Any:
    """Returns the type of the highest logit on pixels that are a probable peak of its map, 0 elsewhere."""
    probability = np.where(scores.is_peak(jnp.asarray(logits)), _expit(logits), 0)
    kind = np.argmax(probability, axis=-1) + 1
    return np.where(probability.max(axis=-1) >= SHOWN, kind, 0).astype(np.uint8)


# Name -> builder, fewest and most outputs
_TASKS: dict[str, tuple[Callable[..., Task], int, int]] = {
    'semseg': (partial(_classes, 'semseg', 'Semantic segmentation'), 2, IGNORED),
    'parts': (partial(_classes, 'parts', 'Part segmentation'), 2, IGNORED),
    'stuff': (partial(_classes, 'stuff', 'Stuff segmentation'), 2, IGNORED),
    'saliency': (partial(_binary, 'saliency', dense_losses.balanced_bce, IOU, scores.saliency()), 1, 1),
    'edges': (partial(_binary, 'edges', dense_losses.weighted_bce, ODSF, edges.scorer()), 1, 1),
    'depth': (_depth, 1, 1),
    'keypoints': (_keypoints, 1, IGNORED - 1),
    'instances': (objects.instances, 1, IGNORED - 1),
    'panoptic': (objects.panoptic, 1, IGNORED - 1),
    'persons': (objects.persons, 1, IGNORED - 1),
}


def make(name: str, outputs: int, stuff: int = 0) -> Task:
    """Builds a dense task.

    Args:
      name: one of DENSE.
      outputs: number of classes, joints or types of keypoints; 1 for saliency, edges and depth.
      stuff: how many of the classes are stuff, in panoptic segmentation.

    Raises:
      UserError: the name is unknown, or the task cannot have so many outputs.
    """
    if name not in _TASKS:
        raise UserError(f"task '{name}' is unknown; {use_one_of(name, DENSE)}")
    build, fewest, most = _TASKS[name]
    if not fewest <= outputs <= most:
        demand = f'{fewest}' if fewest == most else f'{fewest} to {most}'
        raise UserError(f"task '{name}' cannot have {outputs} outputs per pixel: use {demand}")
    return build(outputs, stuff) if name == 'panoptic' else build(outputs)


def smallest(name: str) -> Task:
    """Builds a task with the fewest outputs, for what does not depend on them: its title and its score."""
    return make(name, _TASKS[name][1])
