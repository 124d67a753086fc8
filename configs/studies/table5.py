"""Table V: projection heads of SemiSFL on CIFAR-10, for clients of varying skew.

    python launch.py --config=configs/studies/table5.py:smoke

The paper heads its last two columns Dir(1.0) again; they are read as Dir(0.1) and Dir(0.05), because the row of the
MLP equals Table IV.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import paper, scales

from semisfl_jax.lab.studies.spec import Table

ROWS = {'none': 'No projection head', 'linear': 'Linear', 'mlp': 'MLP'}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    cells = []
    for head, numbers in paper.TABLE_5.items():
        for alpha, value in zip(paper.DIRICHLET, numbers, strict=True):
            changes = {'model.projection': head, **scales.dirichlet(alpha)}
            cells.append(
                scales.cell(scale, ROWS[head], f'Dir({alpha:g})', 'cifar10', changes, paper.number('CIFAR-10', value))
            )
    table = Table('Table V: projection heads', tuple(cells), 'Projection head', ROWS['mlp'])
    of_paper = ['The last two columns, Dir(1.0) in the paper, are read as Dir(0.1) and Dir(0.05): see its Table IV.']
    return scales.study('table5', scale, 'SemiSFL, Table V', [table], of_paper=of_paper)
