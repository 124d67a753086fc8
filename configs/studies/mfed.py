"""What the studies of M-Fed have in common (Zhou et al., arXiv 2504.09800): protocol, methods, scales, numbers.

`smoke` uses scenes of scikit-learn's digits, `cpu` scenes of MNIST's digits, with a small network; they are of 32x32
or, with edges or objects among the tasks, of 96x96, in Table 3 of 48x48. `full` has the paper's data and models. All
methods run with the protocol of M-Fed's experiments, the values of its `official` setting: five clients a task, and the
paper's epochs and, but for `smoke`, rounds.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

import semisfl_jax as sfl
from semisfl_jax import tasks
from semisfl_jax.algorithms.m_fed import official
from semisfl_jax.lab.studies import spec
from semisfl_jax.lab.studies.spec import Cell, Measure, Paper, Table

COSTS = {  # for the error message of a missing scale
    'smoke': 'scenes of digits, half an hour on 2 cores for Table 2, no download',
    'cpu': 'scenes of MNIST on CIFAR-10, both prepared beforehand, on 2 cores a night for Table 2, two hours for '
    'Table 3',
    'full': "the paper's data and models and three seeds, days on accelerators",
}
SEEDS = {'smoke': (0, 1, 2), 'cpu': (0, 1, 2), 'full': (0, 1, 2)}
WARNING = {
    'smoke': "Data and scale are not the paper's: a few scenes of scikit-learn's digits, a small network and four "
    'rounds, to try everything out. No score here says anything about a method.',
    'cpu': "Data and scale are not the paper's: scenes of MNIST's digits on CIFAR-10's photographs and a small "
    "network, with the paper's numbers of clients, epochs and rounds.",
    'full': '',
}
SCENES = {'smoke': 'digit_scenes', 'cpu': 'mnist_scenes'}  # file in configs/
SMOKE = {'rounds': 4, 'eval_every': 2}  # in place of 20
SIDE, LARGE_SIDE = 32, 96  # of scenes, in place of 48. The tolerance of edges is a pixel from 95 on
LARGE = {'edges', *tasks.PARTS}  # tasks with scenes of LARGE_SIDE
LOCAL, FL, M_FED = 'Local', 'FL per task', 'M-Fed'
METHODS = {  # row -> changes
    LOCAL: {'algorithm': 'mfed_local'},
    FL: {'algorithm': 'mfed_fl'},
    M_FED: {'algorithm': 'm_fed'},
}
TRIVIAL = {'constant': 'Constant prediction', 'objects': 'All objects salient'}  # rows that train nothing
TITLES = {
    'semseg': 'Segmentation',
    'parts': 'Parts',
    'saliency': 'Saliency',
    'edges': 'Edges',
    'depth': 'Depth',
    'stuff': 'Stuff',
    'instances': 'Instances',
    'panoptic': 'Panoptic',
    'persons': 'Keypoints',
}  # of columns
DELTA = 'Delta_m'
TABLE_2 = {  # row -> column -> number, PASCAL-Context with ResNet-18
    LOCAL: {'Segmentation': 42.07, 'Parts': 50.74, 'Saliency': 58.50, 'Edges': 62.60, DELTA: 0.0},
    FL: {'Segmentation': 53.14, 'Parts': 55.76, 'Saliency': 61.40, 'Edges': 66.20, DELTA: 11.73},
    M_FED: {'Segmentation': 53.98, 'Parts': 55.93, 'Saliency': 61.56, 'Edges': 66.20, DELTA: 12.38},
}
TASKS_3 = 'instances', 'panoptic', 'persons', 'stuff'  # the columns of Table 3
TABLE_3 = {  # layers of ResNet -> row -> numbers of TASKS_3, COCO
    50: {
        LOCAL: (18.97, 25.78, 26.61, 5.37),
        FL: (21.65, 23.67, 31.17, 7.25),
        M_FED: (20.83, 24.21, 32.69, 7.40),
    },
    101: {
        LOCAL: (20.38, 28.02, 33.40, 15.45),
        FL: (23.25, 25.92, 39.89, 16.26),
        M_FED: (23.22, 25.96, 40.33, 16.62),
    },
}
NOTES = (
    'Local: each of the five clients of a task trains a model of its own, and the score is the mean over these models '
    "after the last round. The paper's Local is the optimum of each client, and does not say how they are summarized.",
    'lambda in round t is lambda_0 1.05^t, t from 0. The paper gives neither number.',
    'Constant prediction: the same outputs on all pixels of all images, which score best: the most frequent class, and '
    'in saliency and edges all pixels or none. All objects salient: in saliency, all pixels that are not background by '
    'the truth of semantic segmentation. In tasks of objects, every image has the same ones: of each class its mean '
    'box, filled; the most frequent stuff; one person with the mean of each joint. They are scored as all outputs are, '
    'by runs of other rows.',
)
OF_PAPER = ("The paper's numbers are of one run each.",)


def cells(
    scale: str,
    base: str,
    row: str,
    changes: dict[str, Any],
    names: Sequence[str],
    over: str,
    numbers: dict[str, float] | None = None,
    ending: str = '',
) -> list[Cell]:
    """The cells of a row: the score of each task, and Delta_m; all are read from the same runs.

    Args:
      scale: of SEEDS.
      base: file in configs/; at small scales always that of SCENES.
      row: its name.
      changes: of the protocol.
      names: of the tasks.
      over: row over which Delta_m is the gain.
      numbers: of the paper, by column.
      ending: of the names of columns.
    """
    file, paper = SCENES.get(scale, base), sfl.flat(sfl.get_config(base))
    unchanged, config = sfl.get_config(file), sfl.get_config(file)
    scales.change(config, {'data.tasks': tuple(names)} | changes, row)
    protocol = official(sfl.flat(config) | {'data.name': paper['data.name']})
    sizes = {'data.image_size': LARGE_SIDE if LARGE & {*names} else SIDE} if scale in SCENES else {}
    if tasks.PARTS.keys() & {*names}:
        sizes['augment.crop'] = 0.0  # objects are only flipped
    short = SMOKE if scale == 'smoke' else {}
    scales.change(config, protocol | {'seeds': SEEDS[scale]} | short | sizes | changes, row)
    measures = {TITLES[name]: Measure(tasks.score_key(name, tasks.smallest(name).score.name)) for name in names}
    measures[DELTA] = Measure('delta_m', reference=over)
    made = []
    for column, measure in measures.items():
        number = (numbers or {}).get(column)
        published = None if number is None else Paper(number, None, paper['data.name'], None, decimals=2)
        made.append(spec.cell(row, column + ending, file, config, unchanged, published, measure))
    return made


def trivial(cells: Sequence[Cell]) -> list[Cell]:
    """The rows of trivial predictions, beside the cells of a row whose runs score them."""
    made = []
    for name, row in TRIVIAL.items():
        for cell in cells:
            if name == 'constant' or cell.measure.kind == 'saliency_iou':
                measure = cell.measure._replace(trivial=name)
                made.append(dataclasses.replace(cell, row=row, published=None, measure=measure))
    return made


def study(
    name: str,
    scale: str,
    title: str,
    tables: Sequence[Table],
    notes: Sequence[str] = (),
    seeds: Mapping[str, tuple[int, ...]] = SEEDS,
) -> ConfigDict:
    """What a file in configs/studies returns, as `scales.study`."""
    notes = (*NOTES, *notes)
    return scales.study(name, scale, title, tables, notes, OF_PAPER, seeds=seeds, warning=WARNING, pilot={})


check = partial(scales.check, costs=COSTS)
