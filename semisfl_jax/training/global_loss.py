"""The objective that clients minimize together, of the server's model over all of their images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, data
from semisfl_jax.core import sampling
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Array
from semisfl_jax.training.experiment import Experiment

NAME = 'loss_global'  # in metrics.jsonl, of the rounds that are evaluated


def weights(
    partition: data.Partition, held: np.ndarray, all_labels: bool, hparams: HParams
) -> tuple[np.ndarray, np.ndarray]:
    """The objective as a weighted sum over images.

    It is F = sum_k w_k F_k, where F_k is the mean loss of the client's labeled images plus that of its unlabeled ones,
    and w_k the weight of the client in the average.

    Args:
      partition: who holds which rows of the training set.
      held: [2, N], how many unlabeled and labeled images each client holds.
      all_labels: whether clients know all labels.
      hparams: settings.

    Returns:
      Rows of the training set [R], and the weight of each as a labeled and as an unlabeled image, [R, 2].
    """
    unlabeled, with_label = jnp.asarray(held)
    images = np.asarray(sampling.images_held(unlabeled, with_label, hparams.batch_size, hparams.labeled_rows))
    share = images if hparams.local.weighting == 'samples' else images > 0
    labeled = partition.client_index if all_labels else partition.client_labeled_index
    rows, weight = [], []
    for column, kind in enumerate((labeled if hparams.labeled_rows else (), partition.client_index)):
        for w, own in zip(share / max(share.sum(), 1), kind, strict=False):
            rows.append(own)
            weight.append(np.eye(2)[np.full(len(own), column)] * w / max(len(own), 1))
    return np.concatenate(rows).astype(np.int64), np.concatenate(weight)


def build(trials: Sequence[Experiment], like: Any, jit: Callable = jax.jit) -> list[Callable[[Any], float]]:
    """Compiles the objective of R trials once, for states with the shapes of `like`.

    Images go to the device in batches, wherever those of the rounds are.

    Returns:
      [R] functions: state of the trial -> F; [] if the method does not say what its clients minimize.
    """
    first = trials[0]
    losses, config = first.algorithm.client_losses, first.config
    if losses is None:
        return []

    def batch(state: Any, images: Array, labels: Array, weight: Array) -> Array:
        return jnp.sum(weight * jnp.stack(losses(state, images, labels), axis=1))

    held = [weights(trial.partition, trial.held, config.data.client_labels == -1, trial.hparams) for trial in trials]
    size = min(config.eval_batch_size, len(held[0][0]))
    image, label = first.dataset.train_images[:1], first.dataset.train_labels[:1]
    shapes = (
        jax.ShapeDtypeStruct((size, *image.shape[1:]), image.dtype),
        jax.ShapeDtypeStruct((size,), label.dtype),
        jax.ShapeDtypeStruct((size, 2), jnp.float32),
    )
    place = functools.partial(core.replicate, first.mesh) if first.mesh else jax.device_put
    compiled = jit(batch).lower(*core.like(first.mesh, (like, *shapes))).compile()

    def measure(trial: Experiment, rows: np.ndarray, weight: np.ndarray, state: Any) -> float:
        sums = []
        for start in range(0, len(rows), size):
            part = np.resize(rows[start : start + size], size)  # the last batch repeats images, with weight 0
            of_part = np.zeros((size, 2), np.float32)
            of_part[: len(rows) - start] = weight[start : start + size]
            dataset = trial.dataset
            inputs = dataset.train_images[part], dataset.train_labels[part], of_part
            sums.append(compiled(state, *map(place, inputs)))
        return float(np.sum(jax.device_get(sums), dtype=np.float64))

    return [functools.partial(measure, trial, *of_trial) for trial, of_trial in zip(trials, held, strict=True)]
