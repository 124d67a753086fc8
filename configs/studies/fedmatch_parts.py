"""Why FedMatch learns little from unlabeled images (not in its paper): its two weights, with and without true labels.

    python launch.py --config=configs/studies/fedmatch_parts.py:digits

In its authors' code agreement labels weigh 0.01, and ||sigma - psi||^2 draws psi to what labels have taught sigma, by
2 % in every step (docs/ledger.md).
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from semisfl_jax.lab.studies.spec import Table

WHOLE = 'FedMatch'
HEAVY, FREE = {'fedmatch.lambda_a': 1.0}, {'fedmatch.lambda_l2': 0.0}
TRUE = {'pseudo_labels': 'true'}
ROWS = {
    WHOLE: {},
    'labels weigh 1': HEAVY,
    'psi not drawn to sigma': FREE,
    'both': {**HEAVY, **FREE},
    'FedMatch (oracle)': TRUE,
    'labels weigh 1 (oracle)': {**HEAVY, **TRUE},
    'both (oracle)': {**HEAVY, **FREE, **TRUE},
    'no pseudo-labels': {'pseudo_labels': 'none'},
    'Supervised-only': {'algorithm': 'supervised_only'},
}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    cells = scales.cells(scale, ROWS, 'fedmatch')
    table = Table('Test accuracy', tuple(cells), 'FedMatch', WHOLE, ('values', 'accuracy_rounds'))
    return scales.study('fedmatch_parts', scale, 'The weights of FedMatch', [table])
