"""Table VI: parameters alpha and beta of the adaptation of K_s; SVHN, and CIFAR-10 with 4,000 and 250 labels.

    python launch.py --config=configs/studies/table6.py:smoke

Every row appears twice, under the paper's settings and under those of the authors' code. The small scales have one
part, with few labels of their own data.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import paper, scales

from semisfl_jax.studies.spec import Table

PARTS = {  # part -> file in configs/, column of paper.SETS, labels
    'SVHN': ('svhn', 'SVHN', 1000),
    'CIFAR-10, 4,000 labels': ('cifar10', 'CIFAR-10', 4000),
    'CIFAR-10, 250 labels': ('cifar10', 'CIFAR-10', 250),
}
SETTINGS = {'paper': '', 'code': ', code'}  # of a file in configs/ -> end of the names of rows
CAPTION = (
    "Rows with 'code' run under the settings of the authors' code (:code after a configuration): one queue, its rule "
    'for K_s, and its other settings.'
)
# The final alpha and beta appear only in the newest commit of that code; see docs/ledger.md, memory queue.
PUBLISHED = "The paper's numbers are shown next to both and probably come from the code."


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    tables = []
    for part, rows in paper.TABLE_6.items():
        base, column, labels = PARTS[part]
        title, caption = part, f'{CAPTION} {PUBLISHED}'
        if scale != 'full':
            if labels != 250:
                continue
            labels = scales.FEW_LABELS[scale]
            title, caption = f'{scales.STAND_IN_NAME[scale]}, {labels} labels', CAPTION
        cells = []
        for settings, ending in SETTINGS.items():
            for alpha, numbers in rows.items():
                for beta, value in zip(paper.BETAS, numbers, strict=True):
                    changes = {'frequency.alpha': alpha, 'frequency.beta': beta, 'data.num_labeled': labels}
                    changes |= scales.LONGER[scale]
                    number, place = (
                        paper.number(column, value, labels),
                        (f'alpha = {alpha:g}{ending}', f'beta = {beta:g}'),
                    )
                    cells.append(scales.cell(scale, *place, base, changes, number, settings=settings))
        tables.append(Table(f'Table VI: {title}', tuple(cells), 'Divisor', 'alpha = 1.5', ('values', 'k_s'), caption))
    of_paper = [
        'The main setting of the paper is alpha = 1.5 and beta = 8, but the 91.4 and 88.6 of its Table II equal the '
        'cells alpha = 2, beta = 8 here.'
    ]
    return scales.study('table6', scale, 'SemiSFL, Table VI', tables, of_paper=of_paper)
