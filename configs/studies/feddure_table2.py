"""FedDure, Table 2: what each of its two regulators contributes.

    python launch.py --config=configs/studies/feddure_table2.py:smoke

Below it, for each column, what right and wrong pseudo-labels weigh as a client comes back: whether F-reg learns to tell
them apart.
"""

import dataclasses

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import feddure

from semisfl_jax.algorithms.feddure import VISITS
from semisfl_jax.lab.studies.spec import Measure, Table

# Weights without F-reg are 1 for labels that reach the threshold, else 0: they change with the model alone
REGULATORS = {'F-reg': 'FedDure', 'threshold': 'FedDure without F-reg'}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `feddure.COSTS`."""
    feddure.check(scale)
    numbers = feddure.TABLE_2
    cells = feddure.cells(scale, tuple(numbers), ('(IID, DIR)', '(DIR, DIR)'), numbers)
    figures = ('values', 'accuracy_rounds')
    table = Table('Table 2: test accuracy', tuple(cells), 'Method', 'FedAvg + FixMatch', figures)
    tables = [table, *(weights(table, column) for column in table.columns)]
    return feddure.study('feddure_table2', scale, 'FedDure, Table 2', tables)


def weights(table: Table, column: str) -> Table:
    """Weights of right and wrong pseudo-labels by the visits of their client, off the runs of a column of Table 2."""
    cells = [
        dataclasses.replace(
            table.at(row, column),
            row=f'{name}, {kind}',
            column=visits,
            measure=Measure(f'weight_{kind}_visit_{first}'),
            published=None,
        )
        for name, row in REGULATORS.items()
        for kind in ('right', 'wrong')
        for first, visits in VISITS.items()
    ]
    caption = (
        'Columns: which of its rounds a client is in. Later ones are later in the run, when the model is better, too: '
        'what F-reg learns is what changes more than in the rows of the threshold.'
    )
    return Table(f'Weights by visit, {column}', tuple(cells), 'Weights of', 'F-reg, right', ('values',), caption)
