"""SemiSFL + client priors, a method of this package (docs/client-priors.md), beside the nearest ones, by how unequal
clients are; and its parts.

    python launch.py --config=configs/studies/priors.py:digits

Its rule was chosen with seeds 0 to 9 of the digits and tried on MNIST, so the seeds differ there. CIFAR-10 had no
part in that, and has the seeds of Tables II and III, whose runs it shares. `study_tuned` compares tuned methods.
"""

from functools import partial

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from semisfl_jax.lab.studies.spec import Cell, Measure, Table

PRIORS = 'SemiSFL + client priors'
METHODS = {
    PRIORS: {'algorithm': 'semisfl_prior'},
    'SemiSFL': {'algorithm': 'semisfl'},
    'FedSwitch-SL': {'algorithm': 'fedswitch_sl'},
    'SemiFL': {'algorithm': 'semifl'},
}
# Beside these on CIFAR-10, which is data of the paper: so all methods of Tables II and III are in one table
OF_TABLES = {'FedSwitch': {'algorithm': 'fedswitch'}, 'FedMatch': {'algorithm': 'fedmatch'}}
PARTS = {
    PRIORS: {},
    'counts of the round alone': {'prior.decay': 0.0},
    'all counts kept': {'prior.decay': 1.0},
    'not divided by the cohort': {'prior.divisor': 'none'},
    'all anchors have C': {'prior.all_anchors': True},
    'labels as in SemiSFL': {'prior.weight': 0.0},
    'K_s fixed': {'k_s_rule': 'fixed'},
    'K_s as in SemiSFL': {'k_s_rule': 'paper'},
}
LABELS = {'Confident pseudo-labels that are wrong': 'impurity', 'Images without a confident label': 'masked_out'}
SEEDS = scales.SEEDS | {'digits': tuple(range(10, 20)), 'mnist': tuple(range(10, 15))}
# alpha of Dirichlet partitions, beside uniform ones
ALPHAS = {'digits': (1.0, 0.5, 0.1, 0.05), 'mnist': (0.1, 0.05)}
ALPHAS_OF_PARTS = {'digits': (0.1, 0.05)}
ALPHAS_OTHERWISE = (0.1,)


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    methods, parts, seeds = [], [], {'seeds': SEEDS[scale]}
    labels: dict[str, list[Cell]] = {title: [] for title in LABELS}
    for column, partition in scales.columns(ALPHAS.get(scale, ALPHAS_OTHERWISE)).items():
        changes = {**partition, **seeds}
        for row, of_row in METHODS.items():
            cell = partial(scales.cell, scale, row, column, 'cifar10', {**of_row, **changes})
            methods.append(cell())
            for title, kind in LABELS.items():
                labels[title].append(cell(measure=Measure(kind)))
        for row, of_row in OF_TABLES.items() if scale == 'cifar' else ():
            methods.append(scales.cell(scale, row, column, 'cifar10', {**of_row, **changes}))
        methods += scales.lines(scale, column, 'cifar10', changes)
    for column, partition in scales.columns(ALPHAS_OF_PARTS.get(scale, ALPHAS_OTHERWISE)).items():
        changes = {**METHODS[PRIORS], **partition, **seeds}
        parts += [scales.cell(scale, row, column, 'cifar10', {**changes, **of_row}) for row, of_row in PARTS.items()]
    tables = [
        Table('Test accuracy', tuple(methods), 'Method', PRIORS, ('values', 'accuracy_rounds')),
        Table('Parts', tuple(parts), PRIORS, PRIORS),
        *(Table(title, tuple(cells), 'Method', PRIORS) for title, cells in labels.items()),
    ]
    return scales.study('priors', scale, PRIORS, tables, seeds=SEEDS)
