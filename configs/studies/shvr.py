"""What the studies of Fed-SHVR have in common (Wang et al., arXiv 2111.00010): protocol, methods, scales, numbers.

`smoke` uses the digits, `cpu` MNIST with a narrower network and fewer rounds, `long` and `one_round` (of Table I alone)
MNIST with the paper's network and as many rounds as `cpu`, or the first of the paper's, `full` the paper's data and
models. All methods run with the protocol of Fed-SHVR's experiments, the values of its `official` setting. A ramp, of 50
epochs on MNIST there, takes a quarter of MNIST's rounds, on CIFAR-10 as many.
"""

from functools import partial
from typing import Any

from semisfl_jax.configs.studies import scales

import semisfl_jax as sfl
from semisfl_jax.algorithms.fed_shvr import official
from semisfl_jax.algorithms.fedavg import MEAN_TEACHER
from semisfl_jax.lab.studies import spec
from semisfl_jax.lab.studies.spec import ACCURACY, Cell, Measure, Paper

COSTS = {  # for the error message of a missing scale
    'smoke': 'digits, some minutes on 2 cores, no download',
    'cpu': 'MNIST, prepared beforehand, an hour or two on 2 cores',
    'full': "the paper's data, models and five seeds, days on accelerators",
}
SEEDS = {**dict.fromkeys(('smoke', 'long'), (0, 1, 2)), **dict.fromkeys(('cpu', 'one_round', 'full'), (0, 1, 2, 3, 4))}
ROUNDS = {'smoke': 10, 'cpu': 20, 'long': 20, 'one_round': 1, 'full': 100}  # of MNIST
# Rounds: the paper's 50 epochs are a quarter of all
RAMP = {'smoke': 3, 'cpu': 5, 'long': 5, 'one_round': 25, 'full': 25}
WARNING = {
    'smoke': "Data and scale are not the paper's: scikit-learn's digits, a small network and ten rounds, to try "
    'everything out. No accuracy here says anything about a method.',
    'cpu': "The scale is not the paper's: its data and protocol, but 200 hidden units in place of 5,000, and 20 rounds "
    'in place of 100.',
    'long': "The scale is not the paper's: its data, protocol and network, but 20 rounds in place of 100, and three "
    'seeds in place of five.',
    'one_round': '',
    'full': '',
}
OF_SCALE = {  # -> file in configs/, changes
    'smoke': ('digits', {'data.num_labeled': 100, 'model.name': 'mlp200', 'batch_size': 16}),
    'cpu': ('mnist', {'data.num_labeled': 600, 'model.name': 'mlp200'}),
    **dict.fromkeys(('long', 'one_round', 'full'), ('mnist', {'data.num_labeled': 600, 'model.name': 'mlp5000'})),
}
# Of a client that has its share of the images
STEPS = {'smoke': 2 * 133 // 8, **dict.fromkeys(('cpu', 'long', 'one_round', 'full'), 371)}
IID = {'federation.partition': 'uniform'}
NON_IID = {'federation.partition': 'dirichlet_class', 'federation.alpha': 0.1}
# The same range around the mean as MNIST's 4,320 to 8,015 around 5,940
SMALL_RANGE = {'federation.min_images': 97, 'federation.max_images': 180}
DISTRIBUTIONS = {'IID': IID, 'Non-IID': NON_IID}
TABLE_1 = {  # row -> test accuracy in %: IID after 1 and 100 rounds, Non-IID after 1 and 100
    'FedAvg, few labels': (58.5, 88.0, 37.8, 87.5),
    'FedAvg, all labels': (94.4, 98.5, 94.3, 98.4),
    'Fed-SHVR, alpha1 = alpha2 = 0': (81.4, 92.5, 34.7, 92.4),
    'Fed-SHVR, alpha2 = 0': (83.5, 92.7, 74.4, 92.7),
    'Fed-SHVR, alpha1 = 0': (83.1, 95.2, 72.9, 95.4),
    'Fed-SHVR': (83.6, 96.6, 82.2, 95.5),
}


def methods(scale: str) -> dict[str, dict[str, Any]]:
    """Rows of the studies -> changes."""
    semi = {'algorithm': 'fedavg', 'local.steps': 'longest', 'local.ramp_rounds': RAMP[scale]}
    # Of labeled images: half of a batch of the others, and as many steps as the labels take
    half = 8 if scale == 'smoke' else 32
    alone = {'algorithm': 'fedavg', 'local.objective': 'supervised', 'local.steps': 'longest', 'batch_size': half}
    ramp = {'fed_shvr.ramp_rounds': RAMP[scale]}
    shvr = {'algorithm': 'fed_shvr', **ramp}
    return {
        'FedAvg, few labels': alone,
        'FedAvg, all labels': alone | {'data.client_labels': -1},
        'Fed-SHVR, alpha1 = alpha2 = 0': shvr | {'fed_shvr.alpha1': 0.0, 'fed_shvr.alpha2': 0.0},
        'Fed-SHVR, alpha2 = 0': shvr | {'fed_shvr.alpha2': 0.0},
        'Fed-SHVR, alpha1 = 0': shvr | {'fed_shvr.alpha1': 0.0},
        'Fed-SHVR': shvr,
        'Fed-SH': {'algorithm': 'fed_sh', **ramp},
        'Fed-SVR': {'algorithm': 'fed_svr', **ramp},
        'Fed-MT': semi | MEAN_TEACHER,
        'Fed-Pseudo': semi | {'local.objective': 'pseudo_label', 'threshold': 0.0},
        'FedAvg, few labels, as many steps': alone | {'local.steps': 'auto', 'local.epochs': 0, 'k_u': STEPS[scale]},
    }


def cell(
    scale: str,
    row: str,
    column: str,
    changes: dict[str, Any],
    published: Paper | None = None,
    measure: Measure = ACCURACY,
    base: str = '',
) -> Cell:
    """A cell, with Fed-SHVR's protocol and `changes` of it. `base`: file in configs/, '' for that of the scale."""
    usual, of_scale = OF_SCALE[scale]
    unchanged, config = sfl.get_config(base or usual), sfl.get_config(base or usual)
    place = f'{row} / {column}'
    scales.change(config, ({} if base else of_scale) | {'federation.partition': 'uniform'} | changes, place)
    protocol = official(sfl.flat(config))
    rounds = protocol['rounds'] if base else ROUNDS[scale]
    sizes = SMALL_RANGE if scale == 'smoke' and changes.get('federation.partition') == 'dirichlet_class' else {}
    scales.change(
        config,
        dict(protocol)
        | {'rounds': rounds, 'lr_rounds': 0, 'eval_every': 1, 'checkpoint_every': rounds, 'seeds': SEEDS[scale]}
        | ({} if base else of_scale)
        | sizes
        | changes,
        place,
    )
    return spec.cell(row, column, base or usual, config, unchanged, published, measure)


check = partial(scales.check, costs=COSTS)
study = partial(scales.study, seeds=SEEDS, warning=WARNING, pilot={})
