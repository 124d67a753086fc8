"""What clients learn: a task is its loss, and how its outputs are scored."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax.core.types import MODELS, Array

IGNORED = 255  # in a target map: the pixel counts in no loss and no score


class Score(NamedTuple):
    """A number that measures models. `name` is the end of its key in metrics.jsonl: 'student_accuracy'."""

    name: str
    label: str  # in figures and tables
    percent: bool = True  # a share in [0, 1], shown in percent
    higher_is_better: bool = True

    @property
    def unit(self) -> str:
        """The unit of displayed values, which are `scale` times the stored ones: '%', or '' for plain numbers."""
        return '%' if self.percent else ''

    @property
    def axis(self) -> str:
        """The label of an axis: 'accuracy (%)', 'RMSE'."""
        return f'{self.label} ({self.unit})' if self.unit else self.label

    @property
    def scale(self) -> float:
        """The factor from a stored value to one in `unit`."""
        return 100.0 if self.percent else 1.0

    def text(self, value: float | None) -> str:
        """Formats a value for the screen: '89.17%' or '0.1234'; 'n/a' for None, which the images do not define."""
        if value is None:
            return 'n/a'
        return f'{value:.2%}' if self.percent else f'{value:.4f}'

    def best(self, values: Iterable[float]) -> float:
        """Returns the best of one or more values: the highest or, where lower is better, the lowest."""
        return max(values) if self.higher_is_better else min(values)


class Scorer(NamedTuple):
    """Scores outputs in two steps: counts in the compiled evaluation, and numbers from the counts of all batches."""

    # outputs [B, ...], targets [B, ...], valid [B] bool, sizes -> a pytree. `sizes` [B, 2]: heights and widths of the
    # targets within larger maps, to which outputs are resized; None: outputs and targets have the same size
    count: Callable[[Any, Any, Array, Array | None], Any]  # type: ignore[assignment]  # hides tuple.count
    # Its stacked leaves, [batches, ...] NumPy -> {name of a score: value}. With `on_host`, what is counted are the
    # outputs themselves: leaves [m, ...], `Targets.test` and `Dataset.test_sizes` -> {name of a score: value}
    finish: Callable[..., dict[str, Any]]
    on_host: bool = False


class Headline(NamedTuple):
    """The number that ranks a method: a score of one of its outputs."""

    output: str  # name of an output of `types.Predict`
    score: Score
    split: str = 'test'  # the images: 'test' or 'validation'

    @property
    def key(self) -> str:
        """The key in metrics.jsonl."""
        return score_key(self.output, self.score.name)

    @property
    def text(self) -> str:
        """The name in texts: 'teacher accuracy' on test images, or 'teacher validation accuracy'."""
        return f'{self.output} {"" if self.split == "test" else f"{self.split} "}{self.score.label}'


def score_key(output: str, score: str) -> str:
    """Returns the key of a score in metrics.jsonl."""
    return f'{output}_{score}'


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A task that clients learn.

    If it is dense, outputs are [B, H, W, outputs] and targets [B, H, W] uint8, IGNORED where there is no truth;
    otherwise they are [B, outputs] and [B] int32. Tasks of objects, those of PARTS, are dense, too: outputs and targets
    are dicts of arrays, and in training the decoder's outputs are its losses.
    """

    name: str  # as in `data.tasks`
    title: str  # in figures and tables
    outputs: int  # channels, per image or per pixel; K with K classes; J with J joints
    dense: bool  # targets are maps
    loss: Callable[[Any, Any], Array]  # outputs, targets -> mean loss [] where there is a truth, 0 if nowhere
    score: Score  # the score that ranks models
    scorer: Scorer  # computes `score`, and others
    # Outputs (NumPy) -> the map [B, H, W] of figures, in the target's units. In tasks of objects: outputs or targets,
    # and the side of the images -> the classes of segments, or the numbers of people at their joints
    show: Callable[..., Any] | None = None
    largest: int | None = None  # largest number in a dense target beside IGNORED; None: any
    # Pixel counts of each number in the training maps [IGNORED] (NumPy) -> the outputs of a pixel [outputs] that score
    # best if they are the same on all pixels of all images. In tasks of objects: `Targets.train` and the rows to read
    # -> the outputs of every image
    constant: Callable[..., Any] | None = None
    stuff: int = 0  # how many of the outputs are classes of stuff, the last ones, in panoptic segmentation


ACCURACY = Score('accuracy', 'accuracy')
MACRO_F1 = Score('macro_f1', 'macro F1')
EVAL_LOSS = Score('eval_loss', 'loss', percent=False, higher_is_better=False)
CLIENT_ACCURACY = Score('client_accuracy', 'accuracy, mean over clients')
CLIENT_STD = Score('client_accuracy_std', 'accuracy, standard deviation over clients', higher_is_better=False)
CLIENT_WORST = Score('client_accuracy_worst', 'accuracy, worst tenth of clients')
PER_CLASS = Score('accuracy_per_class', 'accuracy per class')  # a list; 'KEY/3' is the accuracy of class 3
BESIDE_ACCURACY = (MACRO_F1, EVAL_LOSS, CLIENT_ACCURACY, CLIENT_WORST, CLIENT_STD)  # the numbers among them
MIOU = Score('miou', 'mIoU')
IOU = Score('iou', 'IoU at the best threshold')
PIXELS = Score('pixelaccuracy', 'pixel accuracy')
ODSF = Score('odsf', 'odsF')
RMSE = Score('rmse', 'RMSE', percent=False, higher_is_better=False)
AP = Score('ap', 'AP')
MASK_AP = Score('mask_ap', 'AP of masks')
PQ = Score('pq', 'PQ')
OKS_AP = Score('oks_ap', 'AP of joints')
_AP_AT = {f'{name}{at}': f'{label} at 0.{at}' for name, label, _, _ in (MASK_AP, OKS_AP) for at in (50, 75)}
_OTHERS = {'box_ap': 'AP of boxes', 'sq': 'segmentation quality', 'rq': 'recognition quality'}
OF_OBJECTS = (MASK_AP, PQ, OKS_AP, *(Score(name, label) for name, label in (_AP_AT | _OTHERS).items()))
# Tasks of objects, and the arrays of their targets (`parts_of`)
PARTS = {
    'instances': ('boxes', 'labels', 'masks'),
    'panoptic': ('boxes', 'labels', 'masks', 'semantic'),
    'persons': ('joints', 'visible', 'known'),
}
# The dense tasks that data sets may have, in listing order.
DENSE = ('semseg', 'parts', 'saliency', 'edges', 'depth', 'stuff', 'keypoints', *PARTS)
OUTPUTS = (*MODELS, *DENSE)  # names of everything scored
SCORES = {
    score.name: score
    for score in (ACCURACY, *BESIDE_ACCURACY, PER_CLASS, MIOU, PIXELS, IOU, ODSF, RMSE, AP, *OF_OBJECTS)
}


LAST = 10  # scores are averaged over so many evaluations, and pseudo-labels in studies over so many rounds
TRIVIAL_NAMES = {'constant': 'constant prediction', 'objects': 'all objects salient'}  # and what messages call them
GLOBAL_LOSS = 'loss_global'  # in metrics.jsonl, of the rounds that are evaluated: the objective of the clients


def parts_of(name: str, outputs: int, side: int, objects: int, grid: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Returns shape, without the images, and type of the arrays that are the targets of a task of objects.

      boxes: left, top, right and bottom edge in pixels.
      labels: classes from 1 on, 0 for no object.
      masks: of each object on a grid over its box, bits packed along rows (`np.packbits`).
      semantic: for each pixel the class of stuff from 0 on, a number above for any thing, IGNORED without truth.
      joints: x and y in pixels, whose centers are whole numbers.
      visible: of each joint: 0 not labeled, 1 hidden, 2 visible.
      known: for each pixel whether people there are annotated.

    Args:
      name: one of PARTS.
      outputs: of the task.
      side: S, of the images.
      objects: G, the most in an image; the targets of fewer are padded.
      grid: E, side of the grid of a mask.
    """
    shapes = {
        'boxes': ((objects, 4), np.float32),
        'labels': ((objects,), np.uint8),
        'masks': ((objects, grid, grid // 8), np.uint8),
        'semantic': ((side, side), np.uint8),
        'joints': ((objects, outputs, 2), np.float32),
        'visible': ((objects, outputs), np.uint8),
        'known': ((side, side), np.uint8),
    }
    return {part: shapes[part] for part in PARTS[name]}


def split_key(key: str) -> Headline | None:
    """Inverts `score_key`; returns None if the key is not a score of a model or a task."""
    output = next((name for name in OUTPUTS if key.startswith(f'{name}_')), '')
    score = key.removeprefix(f'{output}_').partition('/')[0]
    return Headline(output, SCORES[score]) if output and score in SCORES else None


def delta_m(scores: Mapping[str, float], reference: Mapping[str, float], higher: Mapping[str, bool]) -> float:
    """Computes the mean over tasks of the relative gain over the reference, in percent; positive: better.

    Defined by Maninis et al. (Attentive Single-Tasking of Multiple Tasks, CVPR 2019); M-Fed's Table 2 reports it.

    Args:
      scores: by task.
      reference: by task.
      higher: by task, True if a higher score is better.
    """
    gains = [(1 if higher[task] else -1) * (scores[task] - reference[task]) / reference[task] for task in scores]
    return 100 * float(np.mean(gains))
