"""Whether sides end on the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

TOLERANCE = 1e-3  # of how far training moved the weights; an optimizer step more or less is 0.1 or so


def difference(ends: Sequence[np.ndarray], reference: Sequence[np.ndarray], start: Sequence[np.ndarray]) -> float:
    """The distance (Euclidean, over all weights) between two ends, divided by that from `start` to `reference`.

    Infinite if shapes are unequal or a weight is not finite.
    """
    if [end.shape for end in ends] != [other.shape for other in reference]:
        return float('inf')
    ratio = _distance(ends, reference) / _distance(start, reference)
    return ratio if np.isfinite(ratio) else float('inf')


def _distance(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    squares = [np.sum((one.astype(np.float64) - other) ** 2) for one, other in zip(left, right, strict=True)]
    return float(np.sqrt(sum(squares)))


def read(file: Path) -> list[np.ndarray]:
    """Weights as `task.save` writes them."""
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]
