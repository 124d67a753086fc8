"""All methods with labels at the server on MNIST: 100 labels, very unequal clients.

python launch.py --config=configs/sweeps/mnist.py:smoke --config.data.data_dir=DIR
"""

from ml_collections import ConfigDict
from semisfl_jax.configs.sweeps import scales

from semisfl_jax.sweeps import spec

COSTS = {
    'smoke': '2 trials of 2 rounds for each method, MNIST prepared beforehand, some twenty minutes on 2 cores',
    'cpu': '12 trials of 40 rounds for each method, a night on 2 cores',
}
TRIALS = {'smoke': 2, 'cpu': 12}
SETTINGS = {
    'smoke': {'rounds': 2, 'eval_every': 1, 'checkpoint_every': 2},
    'cpu': {'rounds': 40, 'eval_every': 1, 'checkpoint_every': 10},
}
COMMON = {
    'lr_rounds': 0,
    'data.eval_split': 'validation',
    'data.num_validation': 5000,
    # windows that suit the length of a run, as in the studies
    'frequency.period': 1,
    'frequency.horizon': 10,
    'frequency.check_every': 10,
}


def get_config(scale: str = '') -> ConfigDict:
    """`scale`: 'smoke' or 'cpu'."""
    scales.check(scale, COSTS)
    sweep = spec.sweep(
        'mnist',
        'mnist',
        scales.methods(),
        {**COMMON, **SETTINGS[scale]},
        TRIALS[scale],
        scale,
        'MNIST, 100 labels, Dir(0.1)',
        notes=scales.NOTES,
        warning=scales.WARNING[scale],
    )
    return spec.as_config(sweep)
