"""Table II: final test accuracy of six methods on uniform data.

    python launch.py --config=configs/studies/table2.py:smoke

At the small scales one column stands in for the four data sets of the paper.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import paper, scales

from semisfl_jax.studies.spec import Table

CURVES = ('values', 'accuracy_rounds')


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke', 'cpu' or 'full'."""
    scales.check(scale)
    table = Table('Table II: overall test accuracy', by_data(scale, paper.TABLE_2, {}), 'Method', 'SemiSFL', CURVES)
    return scales.study('table2', scale, 'SemiSFL, Table II', [table])


def by_data(scale: str, numbers: dict, changes: dict) -> tuple:
    """Cells of a table with data sets as columns.

    Args:
      scale: as `get_config`.
      numbers: row -> column -> (mean, standard error) of the paper.
      changes: flat, of all runs.
    """
    cells = []
    for row, columns in numbers.items():
        cell_changes = {'algorithm': paper.METHODS[row], **changes}
        if scale != 'full':
            cells.append(scales.cell(scale, row, scales.STAND_IN_NAME[scale], '', cell_changes))
            continue
        for column, value in columns.items():
            cells.append(scales.cell(scale, row, column, paper.DATA[column], cell_changes, paper.number(column, value)))
    return tuple(cells)
