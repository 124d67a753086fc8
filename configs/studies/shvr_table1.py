"""Fed-SHVR, Table I: test accuracy on MNIST after one round and after all of them, with IID and Non-IID clients.

    python launch.py --config=configs/studies/shvr_table1.py:smoke

Below the rows of the paper stand its ablations Fed-SH and Fed-SVR, the methods it is compared with, and FedAvg with as
many steps as Fed-SHVR takes: with 60 labels a client of FedAvg takes three. A second table varies alpha0, whose value
the paper does not give, and leaves its ramp out. A third, at scale `one_round` alone, varies how unequal clients are.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales, shvr

from semisfl_jax.lab.studies.spec import Measure, Paper, Table

COSTS = shvr.COSTS | {
    'one_round': "MNIST, prepared beforehand, the paper's network, T = 1: three hours on 2 cores",
    'long': "MNIST, prepared beforehand, the paper's network, T = 20: a night on 2 cores",
}
ALPHA0 = {  # row -> changes of Fed-SHVR
    'to 1, ramp': {},
    '1': {'fed_shvr.ramp_rounds': 0},
    'to 0.5, ramp': {'fed_shvr.alpha0': 0.5},
    'to 2, ramp': {'fed_shvr.alpha0': 2.0},
}
LABELS = {'soft labels': {}, 'hard labels': {'fed_shvr.alpha1': 0.0, 'fed_shvr.alpha2': 0.0}}
ALPHAS = (0.1, 0.5, 1.0, 10.0)
FIGURES = ('values', 'accuracy_rounds')
# Rows at scale `long`, which has to fit into a night. An image takes 8 MFLOP forward and 24 in training, so a round of
# ten clients with 371 steps of 32 labeled and 32 unlabeled images, which the received model labels, takes 3,710 x 32 x
# 56 MFLOP = 6.6 TFLOP: five rows, in one_round 52 to 92 seconds of one core. FedAvg with all labels, or with as many
# steps on few, takes 2.8 TFLOP or 26 seconds, with three steps nothing. Together 39 TFLOP, or about 430 core seconds;
# evaluations, with F of all images where a method has it, 40 more. Two partitions, three seeds and 20 rounds: 120 x 470
# seconds = 16 core hours, eight hours on two cores. 25 rounds would take ten, the paper's 100 with all eleven rows 60.
# 20 are those of `cpu`, with its ramp and its splits, so that the two differ in the network alone.
DECIDING = (*shvr.TABLE_1, 'Fed-Pseudo', 'FedAvg, few labels, as many steps')


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of COSTS."""
    scales.check(scale, COSTS)
    last, rows, ends = shvr.ROUNDS[scale], shvr.methods(scale), list(ALPHA0)
    times = dict.fromkeys((1, last))
    if scale == 'one_round':  # in which nothing is corrected, and ramps are at 0, whatever they end with
        rows = {row: changes for row, changes in rows.items() if row in shvr.TABLE_1 or row.startswith('FedAvg')}
        ends = ends[:2]
    if scale == 'long':
        rows, ends = {row: changes for row, changes in rows.items() if row in DECIDING}, []
    cells, weights = [], []
    differs = '5,000 hidden units' if scale == 'cpu' else ''
    for row, changes in rows.items():
        numbers = iter(shvr.TABLE_1.get(row, (None,) * 4))
        for name, distribution in shvr.DISTRIBUTIONS.items():
            published = {1: next(numbers), 100: next(numbers)}
            for after in times:
                number = published.get(after)
                number = number and Paper(number, None, 'mnist', 600, differs=differs)
                measure, column = Measure('accuracy_after', after), f'{name}, T = {after}'
                cells.append(shvr.cell(scale, row, column, {**changes, **distribution}, number, measure))
    for row in ends:
        for name, distribution in shvr.DISTRIBUTIONS.items():
            for after in times:
                for labels, of_labels in LABELS.items():
                    settings = {**rows['Fed-SHVR'], **ALPHA0[row], **of_labels, **distribution}
                    column, measure = f'{name}, {labels}, T = {after}', Measure('accuracy_after', after)
                    weights.append(shvr.cell(scale, row, column, settings, None, measure))
    figures = FIGURES[: len(times)]  # no curves of a single round
    tables = [
        Table('Table I: test accuracy', tuple(cells), 'Method', 'Fed-SHVR', figures),
        Table(
            'Weight of the pseudo-labels',
            tuple(weights),
            'alpha0',
            next(iter(ALPHA0)),
            figures,
            'Soft labels: alpha1 = 0.75, alpha2 = 0.1; hard labels: alpha1 = alpha2 = 0.',
        ),
    ]
    tables = [table for table in tables if table.cells]
    if scale == 'one_round':
        tables.append(_inequality(scale))
    notes = [
        "T counts averages at the server. The paper's algorithm starts with one that changes nothing; its T = 1 cannot "
        'be the model after that.',
        'In the first round of a ramp alpha0 is 0, so that pseudo-labels weigh nothing and alpha1 does not matter.',
        'Few labels: 600, all: 60,000 (digits: 100 and 1,437).',
    ]
    return shvr.study('shvr_table1', scale, 'Fed-SHVR, Table I', tables, notes)


def _inequality(scale: str) -> Table:
    """FedAvg with all labels, which in the paper is as good with Non-IID clients as with IID ones."""
    row, measure = 'FedAvg, all labels', Measure('accuracy_after', 1)
    settings = {'IID': shvr.IID} | {f'Dir({a:g})': shvr.NON_IID | {'federation.alpha': a} for a in ALPHAS}
    cells = [
        shvr.cell(scale, row, column, {**shvr.methods(scale)[row], **changes}, None, measure)
        for column, changes in settings.items()
    ]
    caption = 'The paper has 94.4 % with IID clients and 94.3 % with Non-IID ones.'
    return Table('How unequal clients are, T = 1', tuple(cells), 'Method', '', ('values',), caption)
