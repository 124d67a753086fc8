"""Validation images: training images that nobody trains on (`data.num_validation`), for the choice of settings.

With `data.eval_split` 'validation' they take the place of the test images in the data set of an experiment, so that
nothing that evaluates, diagnoses or draws can read a test image. With 'test' they are not used at all, so that a chosen
setting is trained on the same images as the runs that it was chosen by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.apportion import largest_remainder
from semisfl_jax.data.dataset import Dataset
from semisfl_jax.tasks import IGNORED

EVAL_SPLITS = ('test', 'validation')
_HELD_OUT = -2  # in place of the label: of no class, and not of unknown class either


def draw(dataset: Dataset, number: int, seed: int) -> np.ndarray:
    """The rows to hold out, stratified by class frequency, from a random stream of their own.

    Images of unknown class cannot be scored, and are not taken; in sets with dense tasks, whose truths are maps, they
    are one more class.

    Args:
      dataset: the data set.
      number: V, how many.
      seed: of the partition.

    Returns:
      [V] int32 ascending.

    Raises:
      UserError: there are fewer.
    """
    classes = [*range(dataset.num_classes), *([-1] if dataset.targets else [])]
    groups = [np.flatnonzero(dataset.train_labels == k) for k in classes]
    sizes = np.array([len(rows) for rows in groups])
    if number > sizes.sum():
        raise UserError(
            f"config.data.num_validation={number}: data set '{dataset.name}' has {sizes.sum():,} training images that "
            'could be held out; use fewer'
        )
    generator, taken = rng.host(seed, 'validation'), largest_remainder(sizes, number)
    parts = [generator.permutation(rows)[:count] for rows, count in zip(groups, taken, strict=True)]
    return np.sort(np.concatenate(parts)).astype(np.int32)


def without(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """The data set for a split in which `rows` are of no class, so that nobody gets them."""
    labels = np.array(dataset.train_labels)
    labels[rows] = _HELD_OUT
    return dataclasses.replace(dataset, train_labels=labels)


def evaluated(dataset: Dataset, rows: np.ndarray, split: str, tasks: Sequence[str] = ()) -> Dataset:
    """The data set of an experiment: for `split` 'validation' with the training images `rows` [V] as its test images.

    Raises:
      UserError: none of them has a truth for one of the dense `tasks`.
    """
    if split == 'test':
        return dataset
    truths = {name: target._replace(test=target.train[rows]) for name, target in dataset.targets.items()}
    for name in tasks:
        if (truths[name].test == IGNORED).all():
            raise UserError(
                f"config.data.num_validation={len(rows)}: none of the validation images has a truth for task '{name}'; "
                'hold out more'
            )
    return dataclasses.replace(
        dataset,
        test_images=dataset.train_images[rows],
        test_labels=dataset.train_labels[rows],
        targets=truths,
        test_sizes=None,  # training maps are as large as the images
        eval_split=split,
    )
