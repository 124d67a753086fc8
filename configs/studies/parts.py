"""What the parts of SemiSFL contribute (not a table of the paper): each is left out in turn.

    python launch.py --config=configs/studies/parts.py:digits

The paper names clustering regularization, its projection head and the memory queue as what makes the difference, and
compares with FedSwitch-SL, which has none of them, and with other heads (Table V).
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales

from semisfl_jax.lab.studies.spec import Table

WHOLE = 'SemiSFL'
ROWS = {
    WHOLE: {},
    'no clustering regularization': {'clustering_weight': 0.0},
    'no contrastive loss at the server': {'contrastive_weight': 0.0},
    'neither': {'clustering_weight': 0.0, 'contrastive_weight': 0.0},
    'both at a fifth': {'clustering_weight': 0.2, 'contrastive_weight': 0.2},
    'no queue': {'queue': 'off'},
    'one queue, as in the code': {'queue': 'single_ring', 'queue_empty_slots': 'count'},
    'no projection head': {'model.projection': 'none'},
    'K_s fixed': {'k_s_rule': 'fixed'},
    'FedSwitch-SL': {'algorithm': 'fedswitch_sl'},
}
ON_CIFAR_10 = {  # where K_s goes to 1, its K_min
    'K_s at least 6': {'frequency.beta': 32.0},  # 6.4 of 20, as the paper's 32 of 100 with 4,000 labels
    'K_s fixed (oracle)': {'k_s_rule': 'fixed', 'pseudo_labels': 'true'},
}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: one of `scales.COSTS`."""
    scales.check(scale)
    cells = scales.cells(scale, ROWS | ON_CIFAR_10 if scale == 'cifar' else ROWS, 'semisfl')
    for column, partition in scales.columns().items():
        cells += scales.lines(scale, column, 'cifar10', partition)
    table = Table('Test accuracy', tuple(cells), 'SemiSFL', WHOLE, ('values', 'accuracy_rounds'))
    return scales.study('parts', scale, 'The parts of SemiSFL', [table])
