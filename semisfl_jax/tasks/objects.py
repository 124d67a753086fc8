"""Tasks of objects: instances, panoptic segmentation, and the joints of people.

Their losses are computed by the decoder. The compiled evaluation returns what is predicted, in fixed shapes
(`models.detection.decoders`), and the host scores it at the size of the pictures.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array
from semisfl_jax.tasks.task import IGNORED, MASK_AP, OKS_AP, PQ, Score, Scorer, Task

MASK = 28  # side of predicted masks


def _task(name: str, title: str, outputs: int, score: Score, finish: Callable, **fields: Any) -> Task:
    loss, scorer = (lambda losses, targets: sum(losses.values())), Scorer(_predicted, finish, on_host=True)
    return Task(name, title, outputs, dense=True, loss=loss, score=score, scorer=scorer, **fields)


def _predicted(outputs: dict[str, Array], targets: None, valid: Array, sizes: Array | None = None) -> dict[str, Array]:
    """Returns predictions [B, …] as they are, but masks, which are most of their bytes, at half precision."""
    return outputs | ({'masks': outputs['masks'].astype(jnp.float16)} if 'masks' in outputs else {})


def instances(outputs: int) -> Task:
    """Builds the task of instances of classes 1 .. `outputs`, with their masks."""

    def finish(found: Any, truth: Any, sizes: Any, side: int) -> dict[str, float]:
        from semisfl_jax.tasks import coco_scores  # needs pycocotools

        return coco_scores.instances(found, truth, sizes, side, outputs)

    def constant(targets: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        return _mean_boxes(targets, rows, outputs)

    show = _shown(things=outputs)
    return _task('instances', 'Instance segmentation', outputs, MASK_AP, finish, constant=constant, show=show)


def panoptic(outputs: int, stuff: int) -> Task:
    """Builds the task of segments: things are classes 1 .. `outputs` - `stuff`, stuff has the classes after these."""
    things = outputs - stuff

    def finish(found: Any, truth: Any, sizes: Any, side: int) -> dict[str, float]:
        from semisfl_jax.tasks import coco_scores

        return coco_scores.panoptic(found, truth, sizes, side, things, stuff)

    def constant(targets: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        semantic, counts = targets['semantic'], np.zeros(IGNORED + 1, np.int64)
        for row in rows:
            counts += np.bincount(semantic[row].ravel(), minlength=len(counts))
        everywhere = np.full(semantic.shape[1:], np.argmax(counts[:stuff]), np.uint8)
        return {**_mean_boxes(targets, rows, things), 'semantic': everywhere}

    more = {'constant': constant, 'show': _shown(things=things, stuff=stuff), 'stuff': stuff}
    return _task('panoptic', 'Panoptic segmentation', outputs, PQ, finish, **more)


def persons(outputs: int) -> Task:
    """Builds the task of people with `outputs` joints each."""

    def finish(found: Any, truth: Any, sizes: Any, side: int) -> dict[str, float]:
        from semisfl_jax.tasks import coco_scores

        return coco_scores.persons(found, truth, sizes, side, outputs)

    def constant(targets: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Predicts one person, with every joint at its mean place."""
        joints, visible = targets['joints'][rows], targets['visible'][rows] > 0
        number = np.maximum(visible.sum(axis=(0, 1)), 1)[:, None]
        places = np.sum(joints * visible[..., None], axis=(0, 1), dtype=np.float64) / number  # [J, 2]
        peaks = np.concatenate([places, np.ones((outputs, 1)), np.zeros((outputs, 1))], axis=1)
        return {'peaks': peaks[:, None].astype(np.float32)}

    return _task('persons', 'Joints of people', outputs, OKS_AP, finish, constant=constant, show=_shown())


def _shown(**classes: int) -> Callable[[Any, int], np.ndarray]:
    def show(parts: Any, side: int) -> np.ndarray:
        from semisfl_jax.tasks import coco_scores

        return coco_scores.shown(parts, side, **classes)

    return show


def _mean_boxes(targets: Mapping[str, np.ndarray], rows: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """Predicts in every image an object of each class: its mean box, filled, with the share of images as its score."""
    labels, boxes = targets['labels'][rows], targets['boxes'][rows]
    numbers = np.arange(1, classes + 1)
    mean = np.array(
        [boxes[labels == k].mean(axis=0, dtype=np.float64) if (labels == k).any() else np.zeros(4) for k in numbers]
    )
    shares = np.array([(labels == k).any(axis=1).mean() for k in numbers])
    return {
        'boxes': mean.astype(np.float32),
        'scores': shares.astype(np.float32),
        'labels': numbers.astype(np.int32),
        'masks': np.ones((classes, MASK, MASK), np.float32),
        'valid': shares > 0,
    }
