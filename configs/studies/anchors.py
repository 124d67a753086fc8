"""Does SemiSFL + client priors gain by leaving clustering regularization to confident images? All anchors (what
`prior.all_anchors=True` does, and SemiSFL) or only confident ones, and SemiSFL beside them.

    python launch.py --config=configs/studies/anchors.py:digits

No seed here had a part in choosing the rule. Everything else, K_s by coverage among it, is the same in both rows.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import priors, scales

from semisfl_jax.lab.studies.spec import ACCURACY, Measure, Table

ALL = 'all anchors'
ROWS = {
    ALL: {'algorithm': 'semisfl_prior', 'prior.all_anchors': True},
    'confident anchors': {'algorithm': 'semisfl_prior', 'prior.all_anchors': False},
    'SemiSFL': {'algorithm': 'semisfl'},
}
SEEDS = scales.SEEDS | {'digits': tuple(range(20, 30)), 'mnist': tuple(range(20, 25)), 'cifar': (20, 21, 22)}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    partitions = scales.columns(priors.ALPHAS.get(scale, priors.ALPHAS_OTHERWISE))
    measures = {'Test accuracy': ACCURACY, **{title: Measure(kind) for title, kind in priors.LABELS.items()}}
    tables = []
    for title, measure in measures.items():
        cells = [
            scales.cell(scale, row, column, 'cifar10', {**changes, **partition, 'seeds': SEEDS[scale]}, measure=measure)
            for column, partition in partitions.items()
            for row, changes in ROWS.items()
        ]
        tables.append(Table(title, tuple(cells), 'Anchors', ALL, ('values',)))
    return scales.study('anchors', scale, 'Client priors, all anchors or confident ones', tables, seeds=SEEDS)
