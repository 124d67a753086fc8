"""Where SemiFL's gain over labels alone comes from (not in its paper): each part is left out in turn.

    python launch.py --config=configs/studies/semifl_parts.py:digits

Without a pseudo-label, all its clients sit out. What is left is the server: with clipped gradients, and with momentum
that goes on from round to round. Without these two as well, it is the server alone, to the bit.
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from semisfl_jax.lab.studies.spec import Table

WHOLE = 'SemiFL'
NONE = {'pseudo_labels': 'none'}
ROWS = {
    WHOLE: {},
    'gradients not clipped': {'semifl.clip_norm': 0.0},
    'momentum anew in every round': {'local.optimizer_state': 'fresh'},
    'no momentum of the average': {'semifl.global_momentum': 0.0},
    "evaluated before the server's steps": {'semifl.order': 'server_first'},
    'no pseudo-labels': NONE,
    'no pseudo-labels, not clipped': {**NONE, 'semifl.clip_norm': 0.0},
    'no pseudo-labels, momentum anew': {**NONE, 'local.optimizer_state': 'fresh'},
    'Supervised-only': {'algorithm': 'supervised_only'},
    'SemiFL (oracle)': {'pseudo_labels': 'true'},
}
ON_CIFAR_10 = {'images hardly mixed': {'semifl.mixup_alpha': 0.01}}  # 95 % of the weights are beyond 0.01 or 0.99


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    cells = scales.cells(scale, ROWS | ON_CIFAR_10 if scale == 'cifar' else ROWS, 'semifl')
    table = Table('Test accuracy', tuple(cells), 'SemiFL', WHOLE, ('values', 'accuracy_rounds'))
    return scales.study('semifl_parts', scale, 'The parts of SemiFL', [table])
