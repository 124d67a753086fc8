"""M-Fed where one task is scarce: few images of semantic segmentation, many of the other tasks; not from a paper.

    python launch.py --config=configs/studies/mfed_scarce.py:smoke

All is done a second time with an encoder that was trained before, on the tasks with many images alone.
"""

import dataclasses
from functools import partial
from typing import Any

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import mfed, scales

from semisfl_jax.lab.studies.spec import Table

COSTS = {  # for the error message of a missing scale
    'smoke': 'scenes of digits, a quarter of an hour on 2 cores, no download',
    'cpu': 'scenes of MNIST on CIFAR-10, both prepared beforehand, a night on 2 cores',
}
SEEDS = {'smoke': (0, 1, 2), 'cpu': tuple(range(10))}
WARNING = {
    'smoke': mfed.WARNING['smoke'],
    'cpu': "Data and scale are our own: scenes of MNIST's digits on CIFAR-10's photographs, and a small network.",
}
SCARCE, RICH = 'semseg', ('parts', 'saliency', 'depth')
CLIENTS = 5  # of a task
IMAGES = {'smoke': (10, 40), 'cpu': (10, 400)}  # at each client of the scarce task, and of the others
ITERATIONS = {'smoke': 5, 'cpu': 50}  # of every client in a round: of 8 images, a pass over the many
ROUNDS = {'smoke': 4, 'cpu': 20}  # as mfed.cells has them
LAMBDAS = {'smoke': (0.01,), 'cpu': (0.001, 0.01, 0.1)}  # in the last round
GROWTHS = (1.05, 1.6)
BEFORE, OF_BEFORE = 'M-Fed, other tasks alone', (1.0, 1.6)  # lambda, growth
SCRATCH = f'{mfed.FL}, from scratch'
MAIN = (mfed.TITLES[SCARCE], mfed.DELTA)  # columns


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke' or 'cpu'."""
    scales.check(scale, COSTS)
    few, many = (CLIENTS * count for count in IMAGES[scale])
    own = {'seeds': SEEDS[scale], 'local.epochs': 0, 'k_u': ITERATIONS[scale]}
    cells = partial(mfed.cells, scale, 'pascal_context', over=mfed.FL)
    counts = {'data.images_of_tasks': (few, *[many] * len(RICH))}
    rows = {row: mfed.METHODS[row] for row in (mfed.LOCAL, mfed.FL)}
    rows |= {f'M-Fed, {last:g}, rho {rho:g}': weighted(scale, last, rho) for rho in GROWTHS for last in LAMBDAS[scale]}
    scratch = [cell for row, changes in rows.items() for cell in cells(row, own | changes | counts, (SCARCE, *RICH))]
    of_fl = [cell for cell in scratch if cell.row == mfed.FL]
    before = cells(BEFORE, own | weighted(scale, *OF_BEFORE) | {'data.num_unlabeled': many}, RICH)
    after = [dataclasses.replace(cell, encoder=before[0]) for cell in scratch]
    after += [dataclasses.replace(cell, row=SCRATCH) for cell in of_fl]
    tables = []
    for title, made, alone in (
        ('From scratch', [*scratch, *mfed.trivial(of_fl)], []),
        ('With an encoder trained before', after, before),
    ):
        main = [cell for cell in made if cell.column in MAIN]
        others = [cell for cell in (*made, *alone) if cell.column not in MAIN]
        caption = f'Delta_m is the gain over {mfed.FL} in all tasks.'
        figures = ('values', 'score_rounds')
        tables.append(Table(title, tuple(main), 'Method, last lambda', mfed.FL, figures, caption))
        tables.append(Table(f'{title}: the other tasks', tuple(others), 'Method, last lambda'))
    notes = (
        f'Clients of segmentation have {IMAGES[scale][0]} images each, those of the other tasks {IMAGES[scale][1]}. '
        f'All make {ITERATIONS[scale]} iterations in a round, so that those with few images train as long.',
        *mfed.NOTES[:1],
        'lambda in round t is lambda_0 rho^t, t from 0. lambda_0 is the number of two digits with which the last round '
        'has about the lambda of the row.',
        f'The encoder trained before is the mean over tasks of those of {BEFORE}, in which lambda grows to '
        f'{OF_BEFORE[0]:g} with rho {OF_BEFORE[1]:g}; each seed has its own. All four tasks start with it and new '
        'decoders, so that the other tasks see their images in twice as many rounds.',
        *mfed.NOTES[2:],
    )
    title = 'M-Fed where a task is scarce'
    return scales.study('mfed_scarce', scale, title, tables, notes, seeds=SEEDS, warning=WARNING, pilot={})


def weighted(scale: str, last: float, growth: float) -> dict[str, Any]:
    """Changes for M-Fed with a lambda of `last` in the last round."""
    first = float(f'{last / growth ** (ROUNDS[scale] - 1):.2g}')
    return {**mfed.METHODS[mfed.M_FED], 'mfed.weight': first, 'mfed.growth': growth}
