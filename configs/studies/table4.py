"""Table IV: final test accuracy of five methods on CIFAR-10, for clients of varying skew; also Fig. 8.

python launch.py --config=configs/studies/table4.py:smoke
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import paper, scales

from semisfl_jax.lab.studies.spec import Table


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    cells = []
    for row, numbers in paper.TABLE_4.items():
        for alpha, value in zip(paper.DIRICHLET, numbers, strict=True):
            changes = {'algorithm': paper.METHODS[row], **scales.dirichlet(alpha)}
            cells.append(
                scales.cell(scale, row, f'Dir({alpha:g})', 'cifar10', changes, paper.number('CIFAR-10', value))
            )
    for alpha in paper.DIRICHLET:
        cells += scales.lines(scale, f'Dir({alpha:g})', 'cifar10', scales.dirichlet(alpha))
    title = 'Table IV: test accuracy on different data distributions'
    table = Table(title, tuple(cells), 'Method', 'SemiSFL', ('values', 'accuracy_rounds'))
    return scales.study('table4', scale, 'SemiSFL, Table IV', [table])
