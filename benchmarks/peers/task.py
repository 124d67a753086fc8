"""What a side reads, and what it reports. Imported in every environment: needs NumPy alone.

A side is a module run as `python -m benchmarks.peers.side_NAME FOLDER [WEIGHTS [MODE]]`. It trains the task of the
folder, calls `done` after every round, and with WEIGHTS writes the final model to that file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

MARK = '@round '  # begins a line that reports a finished round; all other lines are chatter


class Task(NamedTuple):
    """A federation, and how it is trained."""

    model: str  # 'mcmahan_cnn' | 'mlp200' | … of `workloads`
    rounds: int
    steps: int  # of a client in a round
    batch_size: int
    lr: float
    evaluate: int  # rounds from one evaluation on the test images to the next, 0: none
    cores: int
    images: np.ndarray  # [N, M, H, W, C] float32, normalized: M images of each of N clients
    labels: np.ndarray  # [N, M] int64
    test_images: np.ndarray  # [T, H, W, C], likewise
    test_labels: np.ndarray  # [T] int64
    cohorts: np.ndarray  # [rounds, A] int64, the active clients
    weights: list[np.ndarray]  # kernel (scale) and bias of every layer; convolutions [h, w, in, out], others [in, out]

    @property
    def threads(self) -> int:
        """Threads for frameworks that train one client at a time: some models' steps are too short to be divided."""
        return 1 if self.model in ('mlp200', 'blazefl_cnn') else self.cores

    def batches(self, generator: np.random.Generator) -> np.ndarray:
        """Rows [steps, batch_size] of a client's images for one round: pass after pass, each in a new order."""
        count = self.images.shape[1]
        passes = -(-self.steps * self.batch_size // count)
        rows = np.concatenate([generator.permutation(count) for _ in range(passes)])
        return rows[: self.steps * self.batch_size].reshape(self.steps, self.batch_size)


def load(folder: str) -> Task:
    """Reads a task as `problem.write` leaves it."""
    facts = json.loads((Path(folder) / 'task.json').read_text())
    workload = facts['workload']
    with np.load(Path(folder) / 'task.npz') as arrays:
        mean, std = arrays['mean'], arrays['std']
        rows = arrays['rows']
        images, test_images = (
            (arrays[name].astype(np.float32) / np.float32(255) - mean) / std for name in ('images', 'test_images')
        )
        return Task(
            **{name: workload[name] for name in ('model', 'rounds', 'steps', 'batch_size', 'lr', 'evaluate')},
            cores=facts['cores'],
            images=images[rows],
            labels=arrays['labels'][rows].astype(np.int64),
            test_images=test_images,
            test_labels=arrays['test_labels'].astype(np.int64),
            cohorts=arrays['cohorts'],
            weights=[arrays[f'weight_{number}'] for number in range(facts['weights'])],
        )


def arguments() -> tuple[str, str]:
    """The folder of the task and the file for the final weights, '' for none, from the command line."""
    return sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ''


def done(number: int) -> None:
    """Reports round `number`, counted from 1, as soon as its result is there."""
    print(f'\n{MARK}{number}', flush=True)  # on a line of its own, whatever was printed before


def save(weights: Sequence[np.ndarray], file: str) -> None:
    """Writes the final weights, in the order and layout of `Task.weights`; does nothing if `file` is ''."""
    if file:
        np.savez(file, *weights)
