"""Fig. 11: SemiSFL with and without the adaptation of K_s, for several numbers of labels, on CIFAR-10.

python launch.py --config=configs/studies/fig11_frequency.py:smoke
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales
from semisfl_jax.configs.studies.fig9_labels import LABELS

from semisfl_jax.lab.studies.spec import Table

ROWS = {'with adaptation': 'paper', 'without': 'fixed'}  # -> config.k_s_rule


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    cells = []
    for row, rule in ROWS.items():
        for labels in LABELS[scale]:
            changes = {'k_s_rule': rule, 'data.num_labeled': labels, **scales.LONGER[scale]}
            cells.append(scales.cell(scale, row, f'{labels:,} labels', 'cifar10', changes))
    table = Table('Fig. 11: test accuracy', tuple(cells), 'K_s', 'with adaptation', ('values', 'k_s'))
    of_paper = [
        "The paper's text: with 250 labels adaptation gains 10.8 %, and K_s is mostly below 30. It does not give "
        'the values of the figure, and of the numbers of labels it mentions only 250.'
    ]
    return scales.study('fig11_frequency', scale, 'SemiSFL, Fig. 11', [table], of_paper=of_paper)
