"""Adaptive K_s against every fixed one (not in the paper): the same rounds, and so the same bytes.

    python launch.py --config=configs/studies/fixed_k_s.py:digits

The paper compares its controller with a constant K_s (Fig. 11). A user would choose a fixed K_s by trying some;
the rows are what such a search sees.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from semisfl_jax.lab.studies.spec import Measure, Table

FIXED = {'smoke': (5, 20), 'cpu': (5, 20), 'digits': (2, 5, 10, 20, 40), 'mnist': (2, 5, 10, 20, 40), 'cifar': (5, 20)}
FIXED |= {'full': (10, 25, 50, 100, 200)}
ADAPTIVE = 'adaptive'
LABELS = {
    'smoke': (40,),
    'cpu': (1000,),
    'digits': (20, 40, 80),
    'mnist': (50, 100, 250),
    'cifar': (250, 1000),
    'full': (250, 4000),
}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    rows = {ADAPTIVE: {}} | {f'K_s = {count}': {'k_s_rule': 'fixed', 'k_s': count} for count in FIXED[scale]}
    accuracy, traffic = [], []
    for row, changes in rows.items():
        for labels in LABELS[scale]:
            place = (row, f'{labels:,} labels', 'cifar10')
            values = {**changes, 'data.num_labeled': labels, **scales.LONGER[scale]}
            accuracy.append(scales.cell(scale, *place, values))
            traffic.append(scales.cell(scale, *place, values, measure=Measure('all_gigabytes')))
    tables = [
        Table('Test accuracy', tuple(accuracy), 'K_s', ADAPTIVE, ('values', 'k_s')),
        Table('Traffic of the run', tuple(traffic), 'K_s'),
    ]
    return scales.study('fixed_k_s', scale, 'SemiSFL, adaptive and fixed K_s', tables)
