"""Fig. 12: decay of the teacher and threshold of pseudo-labels of SemiSFL, on CIFAR-10 with 250 labels.

    python launch.py --config=configs/studies/fig12_ablation.py:smoke

The paper's text mentions gamma 0.9, 0.99 and 0.999 and tau 0.95; the other values are ours.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from semisfl_jax.lab.studies.spec import Table

PARTS = {  # title -> key, name, values
    'Fig. 12(a): decay of the teacher': ('ema_decay', 'gamma', (0.5, 0.9, 0.95, 0.99, 0.999)),
    'Fig. 12(b): threshold of pseudo-labels': ('threshold', 'tau', (0.5, 0.8, 0.9, 0.95, 0.99)),
}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    labels, tables = scales.FEW_LABELS.get(scale, 250), []
    for title, (key, name, values) in PARTS.items():
        cells = [
            scales.cell(scale, 'SemiSFL', f'{name} = {value:g}', 'cifar10', {key: value, 'data.num_labeled': labels})
            for value in values
        ]
        tables.append(Table(title, tuple(cells), 'Method', '', ('values',)))
    of_paper = [
        "The paper's text: gamma is best from 0.9 to 0.99 and worse at 0.999, tau is best at 0.95. It does not give "
        'the values of the figure.'
    ]
    return scales.study('fig12_ablation', scale, 'SemiSFL, Fig. 12', tables, of_paper=of_paper)
