"""Does clustering regularization hold SemiSFL back at its start, when hardly an image has a confident label? Each row
takes one thing away from it; K_s is fixed, so that the server's steps are the same in all.

    python launch.py --config=configs/studies/start.py:cifar

In the paper's own experiment (docs/results.md, 480 rounds) the labels' loss rose after most of the first rounds with a
confident image: an anchor, however doubtful its label, is drawn to the few confident keys of that class. Here an anchor
may need a confident label, the keys may all be in one ring, C may be left out, or the clients may begin later.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from semisfl_jax.lab.studies.spec import Measure, Table

WHOLE = 'all anchors'
SHARE = {'late': 10, 'early': 4}  # of the rounds: before the clients begin, and until the second table
ROUNDS = {'smoke': 40, 'cpu': 40, 'digits': 600, 'mnist': 300, 'cifar': 400, 'full': 1000}
SEEDS = scales.SEEDS | {'cifar': tuple(range(5))}


def rows(scale: str) -> dict[str, dict]:
    """What each row changes of SemiSFL."""
    return {
        WHOLE: {},
        # SemiSFL's labels: with weight 0 nothing is corrected
        'confident anchors': {'algorithm': 'semisfl_prior', 'prior.weight': 0.0},
        'one queue': {'queue': 'single_ring', 'queue_empty_slots': 'count'},
        'no clustering regularization': {'clustering_weight': 0.0},
        'clients later': {'pre_rounds': ROUNDS[scale] // SHARE['late']},
    }


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    tables = []
    early = Measure('accuracy_after', target=ROUNDS[scale] // SHARE['early'])
    for title, measure in {'Test accuracy': scales.ACCURACY, 'Test accuracy, early': early}.items():
        cells = [
            scales.cell(
                scale,
                row,
                column,
                'cifar10',
                {'algorithm': 'semisfl', 'k_s_rule': 'fixed', **changes, **partition, 'seeds': SEEDS[scale]},
                measure=measure,
            )
            for column, partition in scales.columns().items()
            for row, changes in rows(scale).items()
        ]
        tables.append(Table(title, tuple(cells), 'Clustering regularization', WHOLE, ('values', 'accuracy_rounds')))
    return scales.study('start', scale, 'The start of SemiSFL, K_s fixed', tables, seeds=SEEDS)
