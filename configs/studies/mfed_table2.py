"""M-Fed, Table 2: four tasks of PASCAL-Context, each client alone, federated per task, and with a shared encoder.

    python launch.py --config=configs/studies/mfed_table2.py:smoke

A second table varies lambda_0, which the paper does not give, with few and with many images.
"""

from typing import Any

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import mfed

from semisfl_jax.lab.studies.spec import Table

BASE = 'pascal_context'  # at scale `full`
TASKS = ('semseg', 'parts', 'saliency', 'edges')
LAMBDAS = {  # above 0
    'smoke': (0.0001, 0.01),
    'cpu': (0.0001, 0.01),
    'full': (0.0001, 0.001, 0.01, 0.1),
}
NONE = 'lambda_0 = 0'
# Images that the clients of a task share; 0: all of the set
MANY = {'smoke': 40, 'cpu': 400, 'full': 0}
FEW = {'smoke': 20, 'cpu': 80, 'full': 500}
EPOCHS = {'smoke': 10, 'cpu': 25, 'full': 50}  # with few images: as many iterations as with many


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke', 'cpu' or 'full'."""
    mfed.check(scale)
    main, sweep = [], []
    many = {'data.num_unlabeled': MANY[scale]}
    few = {'data.num_unlabeled': FEW[scale], 'local.epochs': EPOCHS[scale]}
    for row, changes in mfed.METHODS.items():
        main += mfed.cells(scale, BASE, row, changes | many, TASKS, mfed.LOCAL, mfed.TABLE_2[row])
    main += mfed.trivial([cell for cell in main if cell.row == mfed.LOCAL])
    for row, changes in rows(scale).items():
        for ending, number in {', few': few, ', many': many}.items():
            sweep += mfed.cells(scale, BASE, row, {**changes, **number}, TASKS, NONE, ending=ending)
    sweep += mfed.trivial([cell for cell in sweep if cell.row == NONE])
    figures = ('values', 'score_rounds')
    count = f'{MANY[scale] // 5}' if MANY[scale] else 'all of its share'
    tables = [
        Table('Table 2: four tasks', tuple(main), 'Method', mfed.M_FED, figures, 'Delta_m is the gain over Local.'),
        Table(
            'Weight of the distance to the mean encoder',
            tuple(sweep),
            'lambda_0',
            NONE,
            ('values',),
            f'Few: {FEW[scale] // 5} images at each client, many: {count}. With few, they make {EPOCHS[scale]} epochs '
            'in place of 5, which are as many iterations. Delta_m is the gain over lambda_0 = 0, which is FL per task.',
        ),
    ]
    notes = ['The paper trains with 10,581 images and tests with 1,449; here 4,998 and 5,105, the split of its data.']
    return mfed.study('mfed_table2', scale, 'M-Fed, Table 2', tables, notes if scale == 'full' else ())


def rows(scale: str) -> dict[str, dict[str, Any]]:
    """Rows of the second table -> changes."""
    weights = {
        f'lambda_0 = {weight:g}': {**mfed.METHODS[mfed.M_FED], 'mfed.weight': weight} for weight in LAMBDAS[scale]
    }
    return {NONE: mfed.METHODS[mfed.FL], **weights}
