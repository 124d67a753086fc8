"""Fig. 9: test accuracy against the number of labels, and the quality of FedSwitch's pseudo-labels.

    python launch.py --config=configs/studies/fig9_labels.py:smoke

The paper's text mentions the ends of the axis, 250 and 4,000 labels, and 500; 1,000 and 2,000 are ours.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import paper, scales

from semisfl_jax.lab.studies.spec import ACCURACY, Measure, Table

LABELS = {
    'smoke': (20, 40, 80),
    'cpu': (100, 250, 1000),
    'digits': (20, 40, 80),
    'mnist': (50, 100, 250),
    'cifar': (250, 1000),
    'full': (250, 500, 1000, 2000, 4000),
}
PSEUDO_LABELS = {'masked out': Measure('masked_out'), 'impurity': Measure('impurity')}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    accuracy, inside = [], []
    for labels in LABELS[scale]:
        column = f'{labels:,} labels'
        for row, algorithm in paper.METHODS.items():
            changes = {'algorithm': algorithm, 'data.num_labeled': labels}
            number = paper.number('CIFAR-10', paper.FIG_9.get((row, labels)), labels)
            accuracy.append(scales.cell(scale, row, column, 'cifar10', changes, number, ACCURACY))
        above_and_below = scales.lines(scale, column, 'cifar10', {'data.num_labeled': labels})
        accuracy += [line for line in above_and_below if line.row not in paper.METHODS]
        changes = {'algorithm': 'fedswitch', 'data.num_labeled': labels}
        for row, measure in PSEUDO_LABELS.items():
            inside.append(scales.cell(scale, row, column, 'cifar10', changes, None, measure))
    tables = [
        Table('Fig. 9(a): test accuracy', tuple(accuracy), 'Method', 'SemiSFL', ('values', 'accuracy_rounds')),
        Table('Fig. 9(b): pseudo-labels of FedSwitch', tuple(inside), 'Pseudo-labels'),
    ]
    of_paper = [
        "The paper's text gives two of the values: FedSwitch-SL falls from 87.9 % at 4,000 labels to 63.0 % at 250."
    ]
    return scales.study('fig9_labels', scale, 'SemiSFL, Fig. 9', tables, of_paper=of_paper)
