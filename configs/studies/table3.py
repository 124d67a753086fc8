"""Table III: final test accuracy of five methods on clients with unequal classes, Dir(0.1).

    python launch.py --config=configs/studies/table3.py:smoke

At the other scales one column stands in for the three data sets of the paper. Three rows are ours (`scales.LINES`).
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import paper, scales, table2

from semisfl_jax.lab.studies.spec import Table


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    cells = table2.by_data(scale, paper.TABLE_3, scales.dirichlet(0.1))
    table = Table('Table III: test accuracy, Dir(0.1)', cells, 'Method', 'SemiSFL', table2.CURVES)
    return scales.study('table3', scale, 'SemiSFL, Table III', [table])
