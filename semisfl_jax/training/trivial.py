"""Trivial predictions of dense tasks: what a model scores counts from there.

`constant`: the same outputs on all pixels of all images, those that score best (`Task.constant`). `objects`: in
saliency, all objects are salient, which are the pixels whose class in `semseg` is not 0, by its truth: all is known but
what the task asks for, which of them is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from semisfl_jax import tasks
from semisfl_jax.core.types import Array
from semisfl_jax.training.experiment import Experiment

NAMES = {'constant': 'constant prediction', 'objects': 'all objects salient'}  # with what messages call them
PIXELS_AT_ONCE = 2**22  # counting takes eight times their memory
SURE = 20.0  # a logit whose probability is 1 to float32


def constants(experiment: Experiment) -> dict[str, np.ndarray]:
    """The `Task.constant` [outputs] of every task that has one, by output; from the maps that its clients hold."""
    names, pixels = experiment.config.data.tasks, {}
    for output, task in experiment.algorithm.tasks.items():
        if task.constant:
            held = experiment.partition.client_index[names.index(task.name) :: len(names)]
            rows = np.unique(np.concatenate(held))
            pixels[output] = task.constant(counts(experiment.dataset.targets[task.name].train, rows))
    return pixels


def counts(maps: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How many pixels of the maps [n, H, W] uint8 at `rows` have each number: [IGNORED] int64, without IGNORED."""
    total, step = np.zeros(256, np.int64), max(1, PIXELS_AT_ONCE // maps[0].size)
    for start in range(0, len(rows), step):
        total += np.bincount(maps[rows[start : start + step]].ravel(), minlength=256)
    return total[: tasks.IGNORED]


def predict_constants(pixels: Mapping[str, Array], images: Array) -> dict[str, Any]:
    """As `types.Predict`, with `constants` for a state: {output: [B, H, W, outputs]}."""
    return {name: jnp.broadcast_to(pixel, (*images.shape[:3], len(pixel))) for name, pixel in pixels.items()}


def object_maps(experiment: Experiment) -> np.ndarray | None:
    """What `predict_objects` takes for the images on which the experiment is evaluated, [n, H, W, 1] uint8; None where
    there is no saliency, or objects are not known."""
    dataset = experiment.dataset
    maps = dataset.targets.get('semseg')
    if not maps or 'saliency' not in experiment.algorithm.tasks:
        return None
    if dataset.test_sizes is None:
        return maps.test[..., None]
    side = dataset.test_images.shape[1:3]  # as a network would predict them
    return np.stack([of_side(one, size, side) for one, size in zip(maps.test, dataset.test_sizes, strict=True)])


def of_side(original: np.ndarray, size: np.ndarray, side: tuple[int, ...]) -> np.ndarray:
    """The upper left corner of a map [H, W] of this height and width, resized to [h, w, 1] by nearest neighbors."""
    rows, columns = ((2 * np.arange(n) + 1) * size[k] // (2 * n) for k, n in enumerate(side))
    return original[rows[:, None], columns][..., None]


def predict_objects(state: Any, maps: Array) -> dict[str, Any]:
    """As `types.Predict`, of the classes [B, H, W, 1] in place of images, and no state."""
    return {'saliency': jnp.where((maps > 0) & (maps != tasks.IGNORED), SURE, -SURE)}
