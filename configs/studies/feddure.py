"""What the studies of FedDure have in common (Bai et al., AAAI 2024): protocol, methods, scales, numbers.

`smoke` uses the digits, `cpu` Fashion-MNIST alone with a small network and fewer rounds, `long` the same with the
paper's 200, of which the last ten evaluations are averaged, `full` the paper's data and model. All methods run with the
hyper-parameters of that comparison (`feddure.feddure_protocol`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from semisfl_jax.configs.studies import scales

import semisfl_jax as sfl
from semisfl_jax.algorithms import fedmatch
from semisfl_jax.algorithms.feddure import FIXMATCH, feddure_protocol
from semisfl_jax.lab.studies import spec
from semisfl_jax.lab.studies.spec import ACCURACY, LATE_ACCURACY, Cell, Paper

COSTS = {  # for the error message of a missing scale
    'smoke': 'digits, some minutes on 2 cores, no download',
    'cpu': 'Fashion-MNIST, prepared beforehand, hours on 2 cores',
    'long': 'Fashion-MNIST, prepared beforehand, 200 rounds, three hours (Table 2) or a night (Table 1) on 2 cores',
    'full': "the paper's data, model and three seeds, days on accelerators",
}
SEEDS = {'smoke': (0, 1, 2), 'cpu': (0, 1, 2, 3, 4), 'long': (0, 1, 2, 3, 4), 'full': (0, 1, 2)}
WARNING = {
    'smoke': "Data and scale are not the paper's: scikit-learn's digits, 20 clients, a small network and 20 rounds, "
    'to try everything out. No accuracy here says anything about a method.',
    'cpu': "The scale is not the paper's: its protocol, and of its data Fashion-MNIST, with a network of two "
    'convolutions in place of ResNet-9, and 30 rounds in place of 200.',
    'long': "The scale is not the paper's: its protocol and rounds, and of its data Fashion-MNIST, with a network of "
    'two convolutions in place of ResNet-9.',
    'full': '',
}
# Column -> file in configs/
DATA = {
    'smoke': {'digits': 'digits'},
    'cpu': {'Fashion-MNIST': 'fashion_mnist'},
    'long': {'Fashion-MNIST': 'fashion_mnist'},
    'full': {'CIFAR-10': 'cifar10', 'Fashion-MNIST': 'fashion_mnist', 'CINIC-10': 'cinic10'},
}
OF_SCALE = {  # -> changes of the protocol
    'smoke': {
        'data.num_labeled': 100,
        'model.name': 'small_cnn',
        'federation.num_clients': 20,
        'federation.min_labeled': 1,
        'rounds': 20,
        'local.epochs': 3,
        'lr': 3e-3,
        'lr_min': 3e-3,
    },
    'cpu': {'data.num_labeled': 5000, 'model.name': 'small_cnn', 'rounds': 30},
    'long': {'data.num_labeled': 5000, 'model.name': 'small_cnn'},
    'full': {'data.num_labeled': 5000, 'model.name': 'resnet9'},
}
DIRICHLET = {'federation.partition': 'dirichlet_class', 'federation.alpha': 0.5}
SETTINGS = {  # labeled images, unlabeled images
    '(IID, IID)': {'federation.partition': 'uniform', 'federation.labeled_partition': 'uniform'},
    '(IID, DIR)': {**DIRICHLET, 'federation.labeled_partition': 'uniform'},
    '(DIR, DIR)': {**DIRICHLET, 'federation.labeled_partition': 'dirichlet_class'},
}
SUPERVISED = {'local.objective': 'supervised'}
UDA = {'local.objective': 'uda', 'uda.temperature': 0.4, 'threshold': 0.8}  # temperature and threshold: UDA's scripts
METHODS = {  # row -> changes
    'FedAvg, labeled images alone': {'algorithm': 'fedavg', **SUPERVISED, 'batch_size': 10},
    'FedAvg-SL': {'algorithm': 'fedavg', **SUPERVISED, 'batch_size': 10, 'data.client_labels': -1},
    'FedProx-SL': {'algorithm': 'fedprox', **SUPERVISED, 'batch_size': 10, 'data.client_labels': -1},
    'FedAvg + UDA': {'algorithm': 'fedavg', **UDA},
    'FedProx + UDA': {'algorithm': 'fedprox', **UDA},
    'FedAvg + FixMatch': {'algorithm': 'fedavg'},
    'FedProx + FixMatch': {'algorithm': 'fedprox'},
    'FedMatch': {'algorithm': 'fedmatch'},
    'FedDure without C-reg': {'algorithm': 'feddure', 'feddure.coarse': False},
    'FedDure without F-reg': {'algorithm': 'feddure', 'feddure.fine': False},
    'FedDure': {'algorithm': 'feddure'},
}
# Row -> data set -> (mean, standard deviation of three trials) in % for each of SETTINGS
TABLE_1 = {
    'FedAvg, labeled images alone': {
        'CIFAR-10': ((45.68, 1.14), (43.83, 0.36), (40.34, 0.46)),
        'Fashion-MNIST': ((85.56, 0.09), (84.84, 0.09), (82.24, 0.07)),
        'CINIC-10': ((40.73, 0.50), (39.00, 0.31), (28.09, 0.53)),
    },
    'FedAvg-SL': {
        'CIFAR-10': ((75.47, 0.41), (66.70, 0.86), (58.38, 0.41)),
        'Fashion-MNIST': ((89.87, 0.23), (88.60, 0.25), (86.95, 1.12)),
        'CINIC-10': ((67.97, 0.50), (57.72, 1.67), (46.21, 1.06)),
    },
    'FedProx-SL': {
        'CIFAR-10': ((74.67, 0.55), (66.78, 0.87), (59.55, 0.61)),
        'Fashion-MNIST': ((89.53, 0.23), (88.35, 0.02), (87.32, 0.84)),
        'CINIC-10': ((68.13, 0.96), (58.67, 1.04), (52.09, 0.20)),
    },
    'FedAvg + UDA': {
        'CIFAR-10': ((47.47, 0.67), (43.89, 0.15), (35.52, 0.52)),
        'Fashion-MNIST': ((86.20, 0.75), (85.35, 0.62), (81.07, 0.56)),
        'CINIC-10': ((42.25, 0.31), (39.93, 0.57), (29.27, 0.09)),
    },
    'FedProx + UDA': {
        'CIFAR-10': ((46.49, 0.74), (42.82, 0.79), (37.38, 0.52)),
        'Fashion-MNIST': ((84.78, 0.43), (84.50, 0.34), (82.94, 0.39)),
        'CINIC-10': ((41.81, 0.94), (39.40, 0.18), (33.26, 0.98)),
    },
    'FedAvg + FixMatch': {
        'CIFAR-10': ((46.71, 2.49), (46.67, 0.56), (39.95, 1.85)),
        'Fashion-MNIST': ((86.46, 0.39), (85.42, 0.19), (81.07, 0.56)),
        'CINIC-10': ((40.40, 0.61), (39.66, 1.01), (31.99, 0.31)),
    },
    'FedProx + FixMatch': {
        'CIFAR-10': ((47.60, 1.05), (43.39, 0.71), (41.85, 1.32)),
        'Fashion-MNIST': ((86.31, 0.28), (85.18, 0.79), (83.68, 0.78)),
        'CINIC-10': ((41.46, 0.35), (40.02, 0.61), (32.21, 1.03)),
    },
    'FedMatch': {
        'CIFAR-10': ((51.52, 0.50), (51.59, 0.32), (45.56, 0.91)),
        'Fashion-MNIST': ((85.71, 0.21), (85.55, 0.09), (85.13, 0.15)),
        'CINIC-10': ((43.73, 1.15), (41.82, 0.23), (35.27, 0.35)),
    },
    'FedDure': {
        'CIFAR-10': ((67.69, 0.23), (66.85, 0.65), (57.73, 0.31)),
        'Fashion-MNIST': ((88.69, 0.16), (88.21, 0.07), (86.96, 0.12)),
        'CINIC-10': ((56.36, 0.29), (55.10, 0.25), (46.43, 0.13)),
    },
}
_AGAIN = {  # rows of Table 2 that stand in Table 1, too
    row: {data: TABLE_1[row][data][1:] for data in ('CIFAR-10', 'Fashion-MNIST')}
    for row in ('FedAvg + FixMatch', 'FedDure')
}
TABLE_2 = {  # row -> data set -> numbers of (IID, DIR) and (DIR, DIR)
    'FedAvg + FixMatch': _AGAIN['FedAvg + FixMatch'],
    'FedDure without C-reg': {
        'CIFAR-10': ((64.98, 0.58), (54.79, 0.59)),
        'Fashion-MNIST': ((87.45, 0.23), (86.18, 0.13)),
    },
    'FedDure without F-reg': {
        'CIFAR-10': ((66.75, 0.23), (56.79, 0.63)),
        'Fashion-MNIST': ((88.14, 0.12), (86.79, 0.17)),
    },
    'FedDure': _AGAIN['FedDure'],
}
DIFFERS = {'cpu': 'ResNet-9, 200 rounds', 'long': 'ResNet-9'}  # in the paper
NOTES = (
    "The paper's ± are read as standard deviations of its three trials.",
    'The paper gives neither the number of unlabeled images in a batch nor the settings of UDA and FedProx; '
    'docs/ledger.md has those used here. All methods have batches of 10 labeled and 10 unlabeled images.',
)


def cells(scale: str, rows: Sequence[str], settings: Sequence[str], numbers: dict[str, dict[str, Any]]) -> list[Cell]:
    """The cells of a table: `rows` of METHODS, columns of DATA and `settings`, with the paper's `numbers`."""
    made, labels, differs = [], OF_SCALE['full']['data.num_labeled'], DIFFERS.get(scale, '')
    for row in rows:
        for column, base in DATA[scale].items():
            published = numbers.get(row, {}).get(column, (None,) * len(settings))
            if scale == 'full' and column not in numbers[row]:
                continue
            for setting, value in zip(settings, published, strict=True):
                name = f'{column} {setting}'
                number = value and Paper(value[0], None, base, labels, value[1], differs=differs)
                made.append(cell(scale, row, name, base, setting, number))
    return made


def cell(scale: str, row: str, column: str, base: str, setting: str, published: Paper | None) -> Cell:
    """The cell of a method and a setting on the data of `base`, a file in configs/."""
    unchanged, config = sfl.get_config(base), sfl.get_config(base)
    place = f'{row} / {column}'
    scales.change(config, OF_SCALE[scale] | SETTINGS[setting] | METHODS[row], place)
    flat = sfl.flat(config)
    protocol = feddure_protocol(flat) | FIXMATCH | {'data.client_labels': OF_SCALE[scale]['data.num_labeled']}
    if config.algorithm == 'fedmatch':  # whose average is uniform, in its paper and its code
        protocol |= {'local.weighting': 'uniform'}
        official = fedmatch.METHOD.official(flat | {'data.client_labels': flat['data.num_labeled']})
        protocol |= {key: value for key, value in official.items() if key.startswith('fedmatch.')}
    rounds = OF_SCALE[scale].get('rounds', protocol['rounds'])
    padded = {'data.pad_to': 32} if scale == 'full' and base == 'fashion_mnist' else {}
    scales.change(
        config,
        protocol
        | {'eval_every': 1 if scale == 'smoke' else 5, 'checkpoint_every': min(rounds, 50), 'seeds': SEEDS[scale]}
        | padded
        | OF_SCALE[scale]
        | {'lr_rounds': 0, **SETTINGS[setting], **METHODS[row]},
        place,
    )
    measure = LATE_ACCURACY if scale == 'long' else ACCURACY
    return spec.cell(row, column, base, config, unchanged, published, measure)


check = partial(scales.check, costs=COSTS)
study = partial(scales.study, notes=NOTES, seeds=SEEDS, warning=WARNING, pilot={})
