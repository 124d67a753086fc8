"""Panoptic quality (Kirillov et al., Panoptic Segmentation, 2019), counted as the datasets' own code, panopticapi."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

VOID = 0  # in a map of segments: pixels without one


class Segment(NamedTuple):
    """What is known of a segment beside its pixels."""

    label: int
    crowd: bool = False  # several objects under one mask: nothing is missed or wrong there


class Quality(NamedTuple):
    """Panoptic quality of one or more classes; nan for none. Shares in [0, 1]."""

    pq: float
    sq: float  # mean intersection over union of the segments that were found
    rq: float  # F1 score of finding segments
    classes: int  # that were averaged over


def count(
    predicted: np.ndarray, of_predicted: Mapping[int, Segment], truth: np.ndarray, of_truth: Mapping[int, Segment]
) -> dict[int, np.ndarray]:
    """Counts the segments of a picture.

    A predicted and a true segment of one class match if their intersection over union is above 0.5; the pixels of the
    prediction where there is no truth do not count. Predictions that lie on void or on crowds of their class by more
    than half are not wrong.

    Args:
      predicted: [H, W] ids of segments, VOID where there is none.
      of_predicted: by id.
      truth: [H, W], as `predicted`.
      of_truth: by id.

    Returns:
      For each class: the sum of the intersections over union of matched segments, and the numbers of matched, wrong
      and missed segments, [4] float64.
    """
    base = int(truth.max(initial=0)) + 1
    pairs, pixels = np.unique(predicted.astype(np.int64) * base + truth, return_counts=True)
    shared = {divmod(int(pair), base): int(n) for pair, n in zip(pairs, pixels, strict=True)}
    areas = [
        dict(zip(*map(np.ndarray.tolist, np.unique(x, return_counts=True)), strict=True)) for x in (predicted, truth)
    ]
    counts: dict[int, np.ndarray] = {}
    found, hit = set(), set()

    def add(label: int, *row: float) -> None:
        counts[label] = counts.get(label, np.zeros(4)) + row

    for (ours, theirs), both in shared.items():
        if VOID in (ours, theirs) or of_truth[theirs].crowd or of_predicted[ours].label != of_truth[theirs].label:
            continue
        union = areas[0][ours] + areas[1][theirs] - both - shared.get((ours, VOID), 0)
        if both / union > 0.5:
            add(of_truth[theirs].label, both / union, 1, 0, 0)
            found.add(ours)
            hit.add(theirs)
    for theirs in areas[1].keys() - hit - {VOID}:
        if not of_truth[theirs].crowd:
            add(of_truth[theirs].label, 0, 0, 0, 1)
    for ours in areas[0].keys() - found - {VOID}:
        label = of_predicted[ours].label
        crowds = [theirs for theirs, segment in of_truth.items() if segment.crowd and segment.label == label]
        if 2 * sum(shared.get((ours, theirs), 0) for theirs in (VOID, *crowds)) <= areas[0][ours]:
            add(label, 0, 0, 1, 0)
    return counts


def quality(counts: Iterable[Mapping[int, np.ndarray]], classes: Iterable[int]) -> Quality:
    """Averages over the classes that occur, in the truth or in predictions, from the counts of all pictures."""
    totals = dict.fromkeys(classes, np.zeros(4))
    for of_picture in counts:
        for label in totals.keys() & of_picture.keys():
            totals[label] = totals[label] + of_picture[label]
    rows = np.array([row for row in totals.values() if row.any()])
    if not len(rows):
        return Quality(float('nan'), float('nan'), float('nan'), 0)
    total, matched, wrong, missed = rows.T
    whole = matched + (wrong + missed) / 2
    pq, sq, rq = (float(np.mean(x)) for x in (total / whole, total / np.maximum(matched, 1), matched / whole))
    return Quality(pq, sq, rq, len(rows))
