"""All methods with labels at the server on the digits: 40 labels, very unequal clients.

python launch.py --config=configs/sweeps/digits.py:smoke
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.sweeps import scales

COSTS = {
    'smoke': '3 trials of 10 rounds for each method, a quarter of an hour on 2 cores, no download',
    'cpu': '20 trials of 300 rounds for each method, an hour or two on 2 cores',
}
TRIALS = {'smoke': 3, 'cpu': 20}
SETTINGS = {
    'smoke': {'rounds': 10, 'eval_every': 1, 'checkpoint_every': 10},
    'cpu': {'rounds': 300, 'eval_every': 1, 'checkpoint_every': 75},
}
# 1,437 training images: 300 are held out, 40 are labeled, the clients have the rest. `lr` falls over all rounds.
COMMON = {'lr_rounds': 0, 'data.eval_split': 'validation', 'data.num_validation': 300}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke' or 'cpu'."""
    return scales.sweep('digits', scale, 'Digits, 40 labels, Dir(0.1)', COSTS, TRIALS, SETTINGS, COMMON)
