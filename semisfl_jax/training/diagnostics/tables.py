"""Counts of pseudo-labels, and the rates that follow from them. NumPy, on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Rates(NamedTuple):
    """Rates of pseudo-labels; NaN where the denominator is 0."""

    mask: np.ndarray  # share of unlabeled images whose pseudo-label is confident
    accuracy: np.ndarray  # share of correct ones among the confident pseudo-labels of images of known class


def count_labels(
    groups: np.ndarray, truth: np.ndarray, labels: np.ndarray, counted: np.ndarray, size: int, classes: int
) -> np.ndarray:
    """How often a label was given to a class, within each group.

    Args:
      groups: [T] in 0 .. size - 1, for example the client that holds an image.
      truth: [T] true classes, -1 if unknown.
      labels: [T] in 0 .. classes - 1.
      counted: [T] bool.
      size: number of groups.
      classes: K.

    Returns:
      [size, K + 1, K] int32: group, true class (K for unknown), label.
    """
    flat_index = (groups * (classes + 1) + np.where(truth < 0, classes, truth)) * classes + labels
    length = size * (classes + 1) * classes
    return np.bincount(flat_index[counted], minlength=length).reshape(size, classes + 1, classes).astype(np.int32)


def count_slots(labels: np.ndarray, confident: np.ndarray, truth: np.ndarray, classes: int) -> tuple[np.ndarray, int]:
    """The composition of one level of the queue.

    Args:
      labels: [Q], -1 for an empty slot.
      confident: [Q] bool.
      truth: [Q] true classes, -1 if unknown.
      classes: K.

    Returns:
      [2, K + 1, K] int32: not confident or confident, true class (K for unknown), label; and the number of empty slots.
    """
    filled = labels >= 0
    return count_labels(confident.astype(int), truth, labels, filled, 2, classes), int(np.sum(~filled))


def class_rates(confident: np.ndarray, unlabeled: np.ndarray) -> Rates:
    """Rates by true class, [K].

    Args:
      confident: [N, K + 1, K], `MODEL_confident` of a file.
      unlabeled: [N, K + 1].
    """
    labels, images = confident.sum(axis=0)[:-1], unlabeled.sum(axis=0)[:-1]
    given = labels.sum(axis=1)
    return Rates(_ratio(given, images), _ratio(np.diagonal(labels), given))


def client_rates(confident: np.ndarray, unlabeled: np.ndarray) -> Rates:
    """Rates by client, [N]; arguments as in `class_rates`. Images of unknown class count only in the mask rate."""
    evaluable = confident[:, :-1]
    correct = np.diagonal(evaluable, axis1=1, axis2=2).sum(axis=1)
    return Rates(
        mask=_ratio(confident.sum(axis=(1, 2)), unlabeled.sum(axis=1)),
        accuracy=_ratio(correct, evaluable.sum(axis=(1, 2))),
    )


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)
