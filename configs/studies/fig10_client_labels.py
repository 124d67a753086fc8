"""Fig. 10: SemiSFL on STL-10 when clients hold 1,000 to 4,000 of the 5,000 labels.

python launch.py --config=configs/studies/fig10_client_labels.py:smoke
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from semisfl_jax.lab.studies.spec import Table

TOTAL = {'smoke': 100, 'cpu': 1000, 'digits': 100, 'mnist': 500, 'cifar': 1000, 'full': 5000}
SHARES = (0.2, 0.4, 0.6, 0.8)  # of the labels, at the clients
ROWS = {'client labels used': 7, 'client labels ignored': 0}  # -> config.federation.mu


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    cells, total = [], TOTAL[scale]
    for row, mu in ROWS.items():
        for share in SHARES:
            labels = round(share * total)
            changes = {'data.num_labeled': total, 'data.client_labels': labels, 'federation.mu': mu}
            cells.append(scales.cell(scale, row, f'{labels:,} at clients', 'stl10', changes))
    title = f'Fig. 10: test accuracy, {total:,} labels in all'
    table = Table(title, tuple(cells), 'SemiSFL', 'client labels used', ('values', 'accuracy_rounds'))
    of_paper = [
        "The paper's text: 91.1 to 92.7 % over all four with labels at the clients, up to 7.6 % more than when they "
        'are ignored. The text does not give the values of the figure.',
        "When they are ignored, the clients' labeled images are not used at all, as in the authors' code "
        '(federation.ignored_labeled).',
    ]
    return scales.study('fig10_client_labels', scale, 'SemiSFL, Fig. 10', [table], of_paper=of_paper)
