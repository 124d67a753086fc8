"""The split of the images between the clients of dense tasks.

Of T tasks, client n works on task n mod T. With `data.task_images` 'shared', the clients of each task divide all images
that have a truth for it, so that clients of different tasks may hold the same image; with 'disjoint', all clients
divide the images, and those without a truth for a client's task are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from semisfl_jax import tasks
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.dataset import ROWS_AT_ONCE, Dataset


def make(dataset: Dataset, names: Sequence[str], chosen: dict, split: Callable[[Dataset, dict], Any]) -> Any:
    """The partition of several tasks.

    Args:
      dataset: the data set.
      names: of the tasks.
      chosen: the settings.
      split: (data set, settings) -> the `Partition` of one task.

    Raises:
      UserError: a client gets no image.
    """
    rows = [rows_with_truth(dataset, name) for name in names]
    if chosen['task_images'] == 'disjoint':
        whole = split(dataset, chosen)
        kept = [np.intersect1d(part, rows[n % len(names)]) for n, part in enumerate(whole.client_index)]
        if empty := [n for n, part in enumerate(kept) if not len(part)]:
            raise UserError(
                f"config.data.task_images='disjoint' leaves client {empty[0]}, of task {names[empty[0] % len(names)]}, "
                "without an image that has a truth for its task; use fewer clients, or 'shared'"
            )
        return dataclasses.replace(whole, client_index=tuple(part.astype(np.int32) for part in kept))
    parts = []
    for name, own in zip(names, rows, strict=True):
        seed = int(rng.host(chosen['seed'], 'task', name).integers(2**31))
        clients = chosen['num_clients'] // len(names)
        of_task = split(
            dataclasses.replace(dataset, train_labels=dataset.train_labels[own]),
            {**chosen, 'seed': seed, 'num_clients': clients},
        )
        parts.append([own[part].astype(np.int32) for part in of_task.client_index])
    interleaved = tuple(part for of_number in zip(*parts, strict=True) for part in of_number)
    unlabeled = tuple(part[:0] for part in interleaved)
    return dataclasses.replace(of_task, settings=chosen, client_index=interleaved, client_labeled_index=unlabeled)


def check(dataset: Dataset, names: Sequence[str]) -> None:
    """Raises UserError if the data set lacks one of these tasks, or has maps with numbers that a task does not have."""
    for name in names:
        if name not in dataset.targets:
            has = f'it has {", ".join(dataset.targets)}' if dataset.targets else 'it has no dense task'
            raise UserError(f"config.data.tasks: data set '{dataset.name}' has no task '{name}'; {has}")
        target = dataset.targets[name]
        largest = tasks.make(name, target.outputs).largest
        for split, found in (('training', target.train), ('test', target.test)):
            if largest is not None and (beyond := _largest(found)) > largest:
                raise UserError(
                    f"data set '{dataset.name}', task '{name}': a {split} map has the number {beyond}, but with "
                    f'{target.outputs} outputs the largest is {largest} ({tasks.IGNORED}: no truth); fix the reader'
                )


def _largest(target: np.ndarray) -> int:
    """The largest number of maps [n, H, W] that is a truth."""
    blocks = (target[start : start + ROWS_AT_ONCE] for start in range(0, len(target), ROWS_AT_ONCE))
    return max(int(np.max(block, where=block != tasks.IGNORED, initial=0)) for block in blocks)


def rows_with_truth(dataset: Dataset, name: str) -> np.ndarray:
    """The rows of the training set that have a truth for a task, ascending.

    Raises:
      UserError: none has.
    """
    target = dataset.targets[name].train
    known = [
        (target[start : start + ROWS_AT_ONCE] != tasks.IGNORED).any(axis=(1, 2))
        for start in range(0, len(target), ROWS_AT_ONCE)
    ]
    rows = np.flatnonzero(np.concatenate(known))
    if not len(rows):
        raise UserError(f"config.data.tasks: no training image of data set '{dataset.name}' has a truth for '{name}'")
    return rows
