"""What clients learn: a task is its loss, and how its outputs are scored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax.core.types import MODELS, Array

IGNORED = 255  # in a target map: the pixel is in no loss and in no score


class Score(NamedTuple):
    """A number by which models are judged. `name` is the end of its key in metrics.jsonl: 'student_accuracy'."""

    name: str  # without underscores
    label: str  # in figures and tables
    percent: bool = True  # a share in [0, 1], shown in percent
    higher_is_better: bool = True

    @property
    def unit(self) -> str:
        """Of the values that are shown, `scale` times the stored ones: '%', or '' for plain numbers."""
        return '%' if self.percent else ''

    @property
    def axis(self) -> str:
        """The label of an axis: 'accuracy (%)', 'RMSE'."""
        return f'{self.label} ({self.unit})' if self.unit else self.label

    @property
    def scale(self) -> float:
        """What a value is multiplied with to be in `unit`."""
        return 100.0 if self.percent else 1.0

    def text(self, value: float | None) -> str:
        """A value for the screen: '89.17%' or '0.1234'; 'n/a' for one that the images do not define."""
        if value is None:
            return 'n/a'
        return f'{value:.2%}' if self.percent else f'{value:.4f}'

    def best(self, values: Iterable[float]) -> float:
        """The best of some values, at least one: the highest or, where lower is better, the lowest."""
        return max(values) if self.higher_is_better else min(values)


class Scorer(NamedTuple):
    """Judges outputs in two steps: counts in the compiled evaluation, and numbers from the counts of all batches."""

    # outputs [B, ...], targets [B, ...], valid [B] bool, sizes -> a pytree. `sizes` [B, 2]: targets have these heights
    # and widths, in larger maps, and outputs are resized to them; None: outputs and targets have one size
    count: Callable[[Array, Array, Array, Array | None], Any]  # type: ignore[assignment]  # hides tuple.count
    finish: Callable[[Any], dict[str, float]]  # its leaves stacked, [batches, ...] NumPy -> {name of a score: value}


class Headline(NamedTuple):
    """The number by which a method is judged: a score of one of its outputs."""

    output: str  # name of an output of `types.Predict`
    score: Score
    split: str = 'test'  # what it is of: 'test' or 'validation' images

    @property
    def key(self) -> str:
        """In metrics.jsonl."""
        return score_key(self.output, self.score.name)

    @property
    def text(self) -> str:
        """'teacher accuracy', of the test images, or 'teacher validation accuracy'."""
        return f'{self.output} {"" if self.split == "test" else f"{self.split} "}{self.score.label}'


def score_key(output: str, score: str) -> str:
    """The key of a score in metrics.jsonl."""
    return f'{output}_{score}'


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One task. Outputs are [B, H, W, outputs] and targets [B, H, W] uint8 if it is dense, with IGNORED where there is
    no truth; otherwise [B, outputs] and [B] int32.
    """

    name: str  # as in `data.tasks`
    title: str  # in figures and tables
    outputs: int  # channels, per image or per pixel; K with K classes
    dense: bool  # whether targets are maps
    loss: Callable[[Array, Array], Array]  # outputs, targets -> mean loss [] where there is a truth, 0 if nowhere
    score: Score  # the number that counts
    scorer: Scorer  # computes it, and others beside it
    show: Callable[[Any], Any] | None = None  # outputs (NumPy) -> the map [B, H, W] of figures, in the target's units
    largest: int | None = None  # number that a dense target may have beside IGNORED; None: any
    # How many pixels of training maps have each number [IGNORED] (NumPy) -> the outputs of a pixel [outputs] that score
    # best among those that are the same on all pixels of all images
    constant: Callable[[Any], Any] | None = None


ACCURACY = Score('accuracy', 'accuracy')
MIOU = Score('miou', 'mIoU')
IOU = Score('iou', 'IoU at the best threshold')
PIXELS = Score('pixelaccuracy', 'pixel accuracy')
ODSF = Score('odsf', 'odsF')
RMSE = Score('rmse', 'RMSE', percent=False, higher_is_better=False)
AP = Score('ap', 'AP')
# The dense tasks that data sets may have, in the order in which they are listed.
DENSE = ('semseg', 'parts', 'saliency', 'edges', 'depth', 'stuff', 'keypoints')
OUTPUTS = (*MODELS, *DENSE)  # the names of what is scored
SCORES = {score.name: score for score in (ACCURACY, MIOU, PIXELS, IOU, ODSF, RMSE, AP)}


def split_key(key: str) -> Headline | None:
    """The inverse of `score_key`; None for a key that is not that of a score of a model or a task."""
    output, _, score = key.rpartition('_')
    return Headline(output, SCORES[score]) if output in OUTPUTS and score in SCORES else None


def delta_m(scores: Mapping[str, float], reference: Mapping[str, float], higher: Mapping[str, bool]) -> float:
    """The mean over tasks of the relative gain over the reference, in percent; positive: better.

    Defined by Maninis et al. (Attentive Single-Tasking of Multiple Tasks, CVPR 2019); M-Fed's Table 2 reports it. All
    three are by task, else ValueError; `higher`: whether a higher score is the better one.
    """
    if not scores.keys() == reference.keys() == higher.keys():
        raise ValueError(f'tasks differ: {sorted(scores)}, {sorted(reference)}, {sorted(higher)}')
    gains = [(1 if higher[task] else -1) * (scores[task] - reference[task]) / reference[task] for task in scores]
    return 100 * float(np.mean(gains))
