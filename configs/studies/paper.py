"""The numbers of the SemiSFL paper: Tables II to VI, and the values of Fig. 5, 6 and 9 that its text gives."""

from semisfl_jax.lab.studies.spec import Paper

DIRICHLET = (1.0, 0.5, 0.1, 0.05)
METHODS = {  # rows of the tables -> config.algorithm
    'Supervised-only': 'supervised_only',
    'SemiFL': 'semifl',
    'FedMatch': 'fedmatch',
    'FedSwitch': 'fedswitch',
    'FedSwitch-SL': 'fedswitch_sl',
    'SemiSFL': 'semisfl',
}
DATA = {'SVHN': 'svhn', 'CIFAR-10': 'cifar10', 'STL-10': 'stl10', 'IMAGE-100': 'image100'}  # columns -> configs/

# Column -> config.data.name, and the labels that the paper's section on data sets gives it
SETS = {
    'SVHN': ('svhn_cropped', 1000),
    'CIFAR-10': ('cifar10', 4000),
    'STL-10': ('stl10', 5000),
    'IMAGE-100': ('image100', 5000),
}

# (mean, standard error) of the test accuracy in %, by column
TABLE_2 = {
    'Supervised-only': {'SVHN': (73.6, 0.2), 'CIFAR-10': (75.1, 0.5), 'STL-10': (81.9, 0.2), 'IMAGE-100': (26.1, 0.7)},
    'SemiFL': {'SVHN': (88.1, 0.7), 'CIFAR-10': (86.8, 1.2), 'STL-10': (90.7, 2.5), 'IMAGE-100': (65.4, 2.0)},
    'FedMatch': {'SVHN': (88.4, 0.6), 'CIFAR-10': (86.1, 1.1), 'STL-10': (77.5, 1.1), 'IMAGE-100': (29.6, 1.7)},
    'FedSwitch': {'SVHN': (89.0, 0.5), 'CIFAR-10': (87.9, 1.0), 'STL-10': (91.5, 0.3), 'IMAGE-100': (60.3, 1.5)},
    'FedSwitch-SL': {'SVHN': (89.1, 0.4), 'CIFAR-10': (87.5, 0.8), 'STL-10': (90.1, 0.4), 'IMAGE-100': (61.1, 1.4)},
    'SemiSFL': {'SVHN': (91.4, 0.4), 'CIFAR-10': (88.6, 0.2), 'STL-10': (92.8, 0.3), 'IMAGE-100': (66.6, 0.3)},
}
TABLE_3 = {  # Dir(0.1)
    'SemiFL': {'SVHN': (80.5, 0.7), 'CIFAR-10': (78.9, 0.9), 'IMAGE-100': (50.8, 1.7)},
    'FedMatch': {'SVHN': (84.1, 0.6), 'CIFAR-10': (79.7, 1.0), 'IMAGE-100': (29.1, 1.7)},
    'FedSwitch': {'SVHN': (82.9, 0.5), 'CIFAR-10': (79.4, 0.6), 'IMAGE-100': (48.9, 1.8)},
    'FedSwitch-SL': {'SVHN': (83.0, 0.7), 'CIFAR-10': (79.2, 0.7), 'IMAGE-100': (49.3, 1.6)},
    'SemiSFL': {'SVHN': (87.2, 0.2), 'CIFAR-10': (83.8, 0.2), 'IMAGE-100': (56.1, 0.4)},
}
TABLE_4 = {  # CIFAR-10, columns DIRICHLET
    'SemiFL': ((84.9, 0.9), (83.1, 1.3), (78.9, 0.9), (76.5, 1.1)),
    'FedMatch': ((85.9, 1.0), (84.4, 1.1), (79.7, 1.0), (76.6, 1.4)),
    'FedSwitch': ((86.2, 1.0), (83.8, 1.1), (79.4, 0.6), (77.3, 1.0)),
    'FedSwitch-SL': ((86.4, 1.0), (84.1, 0.7), (79.2, 0.7), (77.2, 1.1)),
    'SemiSFL': ((87.9, 0.2), (86.8, 0.2), (83.8, 0.2), (82.3, 0.1)),
}
TABLE_5 = {  # CIFAR-10, projection head -> columns DIRICHLET
    'none': (86.6, 82.3, 82.8, 80.9),
    'linear': (87.2, 86.0, 82.9, 81.7),
    'mlp': (87.9, 86.8, 83.8, 82.3),
}
BETAS = (4.0, 8.0, 12.0)
TABLE_6 = {  # part -> alpha -> columns BETAS
    'SVHN': {
        1.5: (91.8, 91.1, 91.3),
        2.0: (91.6, 91.4, 91.2),
        3.0: (91.8, 91.0, 91.4),
        4.0: (91.4, 91.6, 91.1),
    },
    'CIFAR-10, 4,000 labels': {
        1.5: (88.1, 89.1, 88.1),
        2.0: (89.6, 88.6, 88.4),
        3.0: (89.7, 88.3, 88.6),
        4.0: (88.8, 88.7, 87.9),
    },
    'CIFAR-10, 250 labels': {
        1.5: (81.7, 82.9, 82.6),
        2.0: (81.3, 81.9, 80.7),
        3.0: (77.8, 80.3, 78.1),
        4.0: (73.6, 80.0, 75.3),
    },
}
TARGETS = {'SVHN': (0.85,), 'CIFAR-10': (0.80, 0.85), 'STL-10': (0.85,), 'IMAGE-100': (0.60,)}  # of Fig. 5 and 6
# Values of Fig. 5 and 6 that the text gives: (row, column, target) -> minutes, gigabytes
MINUTES = {
    ('SemiSFL', 'CIFAR-10', 0.80): 86.5,
    ('FedSwitch-SL', 'CIFAR-10', 0.80): 113.6,
    ('SemiSFL', 'CIFAR-10', 0.85): 322.8,
    ('FedSwitch-SL', 'CIFAR-10', 0.85): 330.9,
}
GIGABYTES = {
    ('SemiSFL', 'CIFAR-10', 0.80): 181.95,
    ('FedSwitch-SL', 'CIFAR-10', 0.80): 241.65,  # 59.7 more
    ('SemiSFL', 'SVHN', 0.85): 74.4,
}
# Of Fig. 9, which varies the labels: (row, labels) -> %
FIG_9 = {('FedSwitch-SL', 4000): 87.9, ('FedSwitch-SL', 250): 63.0}


def number(column: str, value: tuple[float, float] | float | None, labels: int | None = None) -> Paper | None:
    """A number of the paper, with its data set.

    Args:
      column: of SETS.
      value: mean, alone or with its standard error; None: the paper has none here.
      labels: where they are not those of SETS.
    """
    if value is None:
        return None
    mean, error = value if isinstance(value, tuple) else (value, None)
    name, usual = SETS[column]
    return Paper(mean, error, name, labels or usual)
