"""All methods with labels at the server on MNIST: 100 labels, very unequal clients.

python launch.py --config=configs/sweeps/mnist.py:smoke --config.data.data_dir=DIR
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.studies import scales as studies
from semisfl_jax.configs.sweeps import scales

COSTS = {
    'smoke': '2 trials of 2 rounds for each method, MNIST prepared beforehand, some twenty minutes on 2 cores',
    'cpu': '12 trials of 60 rounds for each method, MNIST prepared beforehand, an hour or two on 2 cores',
}
TRIALS = {'smoke': 2, 'cpu': 12}
SETTINGS = {
    'smoke': {'lr_rounds': 0, 'rounds': 2, 'eval_every': 1, 'checkpoint_every': 2},
    # The experiment of the studies at scale `mnist`, for a fifth of their rounds. The score is a mean of ten
    # evaluations, so of the last twenty rounds; 2,500 images take half as long as a round.
    'cpu': {**studies.CONVERGED['mnist'], 'rounds': 60, 'eval_every': 2, 'checkpoint_every': 15},
}
VALIDATION = {'data.eval_split': 'validation', 'data.num_validation': 2500}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke' or 'cpu'."""
    return scales.sweep('mnist', scale, 'MNIST, 100 labels, Dir(0.1)', COSTS, TRIALS, SETTINGS, VALIDATION)
