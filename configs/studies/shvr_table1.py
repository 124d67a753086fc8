"""Fed-SHVR, Table I: test accuracy on MNIST after one round and after all of them, with IID and Non-IID clients.

    python launch.py --config=configs/studies/shvr_table1.py:smoke

Below the rows of the paper stand its ablations Fed-SH and Fed-SVR, the methods it is compared with, and FedAvg with as
many steps as Fed-SHVR takes: with 60 labels a client of FedAvg takes three. A second table varies alpha0, whose value
and ramp the paper does not give.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import shvr

from semisfl_jax.studies.spec import Measure, Paper, Table

ALPHA0 = {
    'alpha0 = 1': {},
    'alpha0 = 1, ramp': {'fed_shvr.ramp_rounds': 25},
    'alpha0 = 0.5': {'fed_shvr.alpha0': 0.5},
    'alpha0 = 2': {'fed_shvr.alpha0': 2.0},
}
HARD = {'fed_shvr.alpha1': 0.0, 'fed_shvr.alpha2': 0.0}
RAMP = {'smoke': 3, 'cpu': 5, 'full': 25}  # rounds: a quarter of all, as the paper's 50 epochs of 2 a round


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke', 'cpu' or 'full'."""
    shvr.check(scale)
    last = shvr.ROUNDS[scale]
    cells, ramps = [], []
    for row, changes in shvr.methods(scale).items():
        numbers = iter(shvr.TABLE_1.get(row, (None,) * 4))
        for name, distribution in shvr.DISTRIBUTIONS.items():
            for rounds, published in ((1, next(numbers)), (100, next(numbers))):
                number = published and Paper(published, None, 'mnist', 600)
                number = number if rounds == 1 or last == 100 else None
                after = min(rounds, last)
                measure = Measure('accuracy_after', after)
                column = f'{name}, T = {after}'
                cells.append(shvr.cell(scale, row, column, {**changes, **distribution}, number, measure))
    for row, changes in ALPHA0.items():
        settings = {'algorithm': 'fed_shvr', **changes, **shvr.NON_IID}
        if 'fed_shvr.ramp_rounds' in settings:
            settings['fed_shvr.ramp_rounds'] = RAMP[scale]
        for after in (1, last):
            for name, labels in {'soft labels': {}, 'hard labels': HARD}.items():
                column, measure = f'{name}, T = {after}', Measure('accuracy_after', after)
                ramps.append(shvr.cell(scale, row, column, {**settings, **labels}, None, measure))
    figures = ('values', 'accuracy_rounds')
    tables = [
        Table('Table I: test accuracy', tuple(cells), 'Method', 'Fed-SHVR', figures),
        Table(
            'Weight of the pseudo-labels, Non-IID',
            tuple(ramps),
            'alpha0',
            'alpha0 = 1',
            figures,
            'Soft labels: alpha1 = 0.75, alpha2 = 0.1; hard labels: alpha1 = alpha2 = 0.',
        ),
    ]
    notes = [
        "T counts averages at the server. The paper's algorithm starts with one that changes nothing; its T = 1 cannot "
        'be the model after that.',
        'Few labels: 600, all: 60,000 (digits: 100 and 1,437).',
    ]
    return shvr.study('shvr_table1', scale, 'Fed-SHVR, Table I', tables, notes)
