"""Table II: final test accuracy of six methods on uniform data.

    python launch.py --config=configs/studies/table2.py:smoke

At the other scales one column stands in for the four data sets of the paper. Two rows are ours (`scales.LINES`;
the server alone is a row of the paper).
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import paper, scales

from semisfl_jax.lab.studies.spec import Table

CURVES = ('values', 'accuracy_rounds', 'accuracy_prices')


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
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
    stand_in = scales.STAND_IN_NAME.get(scale)
    columns = {stand_in: ''} if stand_in else {name: paper.DATA[name] for name in next(iter(numbers.values()))}
    cells = []
    for row, published in numbers.items():
        cell_changes = {'algorithm': paper.METHODS[row], **changes}
        for column, base in columns.items():
            number = paper.number(column, published[column]) if column in published else None
            cells.append(scales.cell(scale, row, column, base, cell_changes, number))
    for column, base in columns.items():
        cells += [line for line in scales.lines(scale, column, base, changes) if line.row not in numbers]
    return tuple(cells)
