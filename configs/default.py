"""The default of every key, with which the other configurations begin.

    python launch.py --config=configs/digits.py --config.seed=1 --config.federation.alpha=0.5
    python launch.py --help federation.alpha

The keys, with their defaults, meanings and values, are declared in semisfl_jax/core/hparams.py (those of a round) and
semisfl_jax/config/schema.py (all others); docs/options.md has the options of single methods, such as
config.fedmatch.helpers.

Settings are named after a colon: `configs/cifar10.py` is the paper's reading (where the paper is silent, mostly the
authors' code fills in); `configs/cifar10.py:code` trains as the authors' published code does, except for the few
differences under "What `:code` leaves" in docs/ledger.md.
"""

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import UserError, use_one_of

CODE = {  # what the authors' code has in place of the paper's
    'data.partition_seed': 2020,
    'federation.labeled_partition': 'uniform',
    'queue': 'single_ring',
    'k_s_rule': 'code',
    'client_teacher_bn': 'train',
    'server_teacher_bn': 'train_first_round',
    'sampling': 'replicated',
    'model.batch_norm_variance': 'unbiased',
}


def get_config(settings: str = 'paper') -> ConfigDict:
    """The paper's hyper-parameters for a run of 1,000 rounds. `settings`: 'paper' or 'code'."""
    if settings not in ('paper', 'code'):
        hint = use_one_of(settings, ('paper', 'code'))
        raise UserError(f"unknown settings '{settings}' after the colon of --config; {hint}")
    config = config_lib.default_config()
    if settings == 'code':
        config.update_from_flattened_dict(CODE)
    return config
