"""M-Fed where one task is scarce: few images of semantic segmentation, many of the other tasks; of no paper.

    python launch.py --config=configs/studies/mfed_scarce.py:smoke

A second table starts all tasks with an encoder that was trained before on the tasks with many images alone.
"""

import dataclasses
import itertools
from functools import partial
from typing import Any

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import mfed, scales

from semisfl_jax.studies.spec import Table

COSTS = {  # for the error message of a missing scale
    'smoke': 'scenes of digits, half an hour on 2 cores, no download',
    'cpu': 'scenes of MNIST on CIFAR-10, both prepared beforehand, a night on 2 cores',
}
SEEDS = {'smoke': (0, 1, 2), 'cpu': tuple(range(10))}
SCARCE, RICH = 'semseg', ('parts', 'saliency', 'depth')
CLIENTS = 5  # of a task
IMAGES = {'smoke': (10, 40), 'cpu': (10, 400)}  # at each client of the scarce task, and of the others
ITERATIONS = {'smoke': 5, 'cpu': 50}  # of every client in a round: at `cpu` a pass over the many images
ROUNDS = {'smoke': 4, 'cpu': 20}  # as mfed.cells has them
LAMBDAS = {'smoke': (0.01,), 'cpu': (0.001, 0.01, 0.1)}  # in the last round
GROWTHS = (1.05, 1.6)
BEFORE = 'M-Fed, other tasks alone'
SCRATCH = 'FL per task, from scratch'


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke' or 'cpu'."""
    scales.check(scale, COSTS)
    few, many = (CLIENTS * count for count in IMAGES[scale])
    own = {'seeds': SEEDS[scale], 'local.epochs': 0, 'k_u': ITERATIONS[scale]}
    cells = partial(mfed.cells, scale, 'pascal_context', over=mfed.FL)
    all_tasks = own | {'data.images_of_tasks': (few, *[many] * len(RICH))}
    methods = {mfed.LOCAL: mfed.METHODS[mfed.LOCAL], mfed.FL: mfed.METHODS[mfed.FL], **weighted(scale)}
    scratch = {row: cells(row, changes | all_tasks, (SCARCE, *RICH)) for row, changes in methods.items()}
    shared = own | mfed.METHODS[mfed.M_FED] | {'data.num_unlabeled': many, 'mfed.weight': 1.0, 'mfed.growth': 1.0}
    before = [cell for cell in cells(BEFORE, shared, RICH) if cell.column != mfed.DELTA]
    after = [dataclasses.replace(cell, row=SCRATCH) for cell in scratch[mfed.FL]] + before
    after += [dataclasses.replace(cell, encoder=before[0]) for made in scratch.values() for cell in made]
    made = [*itertools.chain(*scratch.values()), *mfed.trivial(scratch[mfed.FL])]
    caption = 'Delta_m is the gain over FL per task.'
    row_name = 'Method, lambda in the last round'
    tables = [
        Table('From scratch', tuple(made), row_name, mfed.FL, ('values', 'score_rounds'), caption),
        Table('With an encoder trained before', tuple(after), row_name, mfed.FL, ('values',), caption),
    ]
    notes = (
        f'Clients of segmentation have {few // CLIENTS} images each, those of the other tasks {many // CLIENTS}. All '
        f'make {ITERATIONS[scale]} iterations in a round, so that those with few images train as long.',
        *mfed.NOTES[:1],
        'lambda in round t is lambda_0 rho^t, t from 0, with the lambda_0, of two digits, that reaches the number of '
        'the row in the last round.',
        f'The encoder of the second table is the mean of those of the run {BEFORE}, with lambda 1 in all rounds; each '
        'seed has its own. All tasks start with it and with new decoders, and the others see their images once more.',
        *mfed.NOTES[2:],
    )
    title = 'M-Fed where a task is scarce'
    return scales.study('mfed_scarce', scale, title, tables, notes, seeds=SEEDS, warning=mfed.WARNING, pilot={})


def weighted(scale: str) -> dict[str, dict[str, Any]]:
    """Rows of M-Fed -> changes."""
    rows = {}
    for growth in GROWTHS:
        for last in LAMBDAS[scale]:
            first = float(f'{last / growth ** (ROUNDS[scale] - 1):.2g}')
            changes = {'mfed.weight': first, 'mfed.growth': growth}
            rows[f'M-Fed, {last:g}, rho {growth:g}'] = {**mfed.METHODS[mfed.M_FED], **changes}
    return rows
