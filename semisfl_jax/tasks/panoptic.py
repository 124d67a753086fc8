"""Panoptic quality of Kirillov et al., 2019, in NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class PanopticQuality(NamedTuple):
    """Means over the classes that occur, and the classes' own values; PQ of a class is its SQ times its RQ."""

    pq: float
    sq: float  # segmentation quality: mean IoU of the matched segments
    rq: float  # recognition quality: F1 of the segments
    by_class: dict[int, tuple[float, float, float]]  # class -> PQ, SQ, RQ


def panoptic_quality(
    predicted: np.ndarray,
    predicted_classes: Sequence[dict[int, int]],
    true: np.ndarray,
    true_classes: Sequence[dict[int, int]],
    void: int = 0,
) -> PanopticQuality:
    """PQ of segmented images.

    A predicted and a true segment of the same class match if their IoU exceeds 0.5, which at most one pair does. Pixels
    that are void in the truth are in no union, and a predicted segment with more than half of its pixels there is
    no false positive, unless it matches. Crowds (groups of objects under one id) are not known here.

    Args:
      predicted: [n, H, W] integers, the segment of every pixel; ids are an image's own.
      predicted_classes: for each image, {segment: class}.
      true: [n, H, W].
      true_classes: likewise.
      void: the id of pixels that belong to no segment, in both.
    """
    tally: dict[int, np.ndarray] = {}  # class -> sum of IoUs, matched, unmatched predicted and true segments
    for maps in zip(predicted, predicted_classes, true, true_classes, strict=True):
        for kind, row in _segments(*maps, void):
            tally[kind] = tally.get(kind, np.zeros(4)) + row
    by_class = {}
    for kind, (iou, matched, extra, missed) in sorted(tally.items()):
        if matched + extra + missed:
            sq, rq = iou / max(matched, 1), matched / (matched + (extra + missed) / 2)
            by_class[kind] = float(sq * rq), float(sq), float(rq)
    means = np.mean(list(by_class.values()), axis=0) if by_class else np.full(3, np.nan)
    pq, sq, rq = (float(value) for value in means)
    return PanopticQuality(pq, sq, rq, by_class)


def _segments(
    predicted: np.ndarray, predicted_class: dict[int, int], true: np.ndarray, true_class: dict[int, int], void: int
) -> Iterator[tuple[int, np.ndarray]]:
    """What the matches and the segments left over in one image add to the tally: (class, [4])."""
    pairs, areas = np.unique(np.stack([predicted.ravel(), true.ravel()]), axis=1, return_counts=True)
    common = {(int(p), int(t)): int(area) for p, t, area in zip(*pairs, areas, strict=True)}
    predicted_area, true_area = Counter[int](), Counter[int]()
    for (p, t), area in common.items():
        predicted_area[p] += area
        true_area[t] += area
    matched_predicted, matched_true = {void}, {void}
    for (p, t), area in common.items():
        if void in (p, t) or predicted_class[p] != true_class[t]:
            continue
        union = predicted_area[p] + true_area[t] - area - common.get((p, void), 0)
        if 2 * area > union:
            matched_predicted.add(p)
            matched_true.add(t)
            yield true_class[t], np.array([area / union, 1, 0, 0])
    for p in predicted_area.keys() - matched_predicted:
        if 2 * common.get((p, void), 0) <= predicted_area[p]:
            yield predicted_class[p], np.array([0.0, 0, 1, 0])
    for t in true_area.keys() - matched_true:
        yield true_class[t], np.array([0.0, 0, 0, 1])
