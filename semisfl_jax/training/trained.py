"""What the models of a finished or interrupted run make of images."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import numpy as np

from semisfl_jax.core.errors import UserError, shorten
from semisfl_jax.training import arguments, load
from semisfl_jax.training.experiment import Experiment
from semisfl_jax.training.simulation import compile_with


class Trained:
    """The models of one trial after a round.

    Attributes:
      experiment: of the trial: configuration, data, split, model and method.
      state: of the method, `core.State` in those of the package.
    """

    def __init__(self, experiment: Experiment, state: Any):
        self.experiment, self.state = experiment, state

    @property
    def round(self) -> int:
        """After which the models are."""
        return int(self.state.round)

    @property
    def headline(self) -> str:
        """The output by which the method is judged: of the model, or in dense tasks of the task, that has this name."""
        return self.experiment.algorithm.headline

    def predict(self, images: np.ndarray) -> dict[str, Any]:
        """What the method evaluates, computed for other images.

        Args:
          images: [N, H, W, C] uint8, of the size that the data of the run have, not normalized.

        Returns:
          {name: float array}. In classification the names are of models, such as 'teacher', and the arrays are logits
          [N, K]. In dense tasks the names are of tasks, and the arrays [N, H, W, outputs], or a tuple of them where
          every client has a model of its own.

        Raises:
          UserError: images of another shape or type.
        """
        images = self._checked(images)
        size = min(len(images), self.experiment.config.eval_batch_size)
        rows = np.arange(-(-len(images) // size) * size) % len(images)  # the last batch is filled with others
        batches = [jax.device_get(self._predict(self.state, images[of])) for of in rows.reshape(-1, size)]
        return jax.tree.map(lambda *parts: np.concatenate(parts)[: len(images)], *batches)

    def _checked(self, images: Any) -> np.ndarray:
        shape = self.experiment.dataset.test_images.shape[1:]
        try:
            images = np.asarray(images)
        except ValueError as error:  # lists of different lengths
            raise UserError(f'images: {shorten(error)}') from error
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != shape or not len(images):
            numbers = ', '.join(map(str, shape))
            raise UserError(
                f'images is an array {list(images.shape)} of {images.dtype}; give [N, {numbers}] of uint8, 0 to 255, '
                'with N at least 1'
            )
        return images

    @functools.cached_property
    def _predict(self) -> jax.stages.Wrapped:
        return compile_with(self.experiment.config)(self.experiment.algorithm.predict)


def load_trained(folder: str | os.PathLike[str], round_number: int | None = None) -> Trained:
    """The models that a run saved, on one device. The folder is not modified.

    Args:
      folder: of a run of one seed; of several, its seed_N.
      round_number: of a checkpoint, or 0 for the initial models; None: the last one.

    Raises:
      UserError: no run, no such checkpoint, its data are missing, or its method or model is a user's that is not
        registered here.
    """
    path = arguments.folder_of(folder)
    if path is None:
        raise UserError('folder=None holds no run; give the folder of one')
    experiment = load.experiment(path)
    _, state = load.state(path, experiment, round_number)
    return Trained(experiment, state)
