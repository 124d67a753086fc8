"""CIFAR-10, 4,000 labels, AlexNet: the paper's main experiment; for an accelerator.

    python launch.py --config=configs/cifar10.py --config.data.data_dir=DIR
    python launch.py --config=configs/cifar10.py --config.federation.partition=dirichlet --config.federation.alpha=0.1
    python launch.py --config=configs/cifar10.py --config.rounds=2 --config.k_s=2 --config.k_u=2      a few minutes

30 clients, 10 of them active in each of 1,000 rounds of 100 supervised and 50 cross-entity iterations: about 66 PFLOP,
13 minutes on an H100 or days on a CPU. The paper reports 88.6% on uniform data and 83.8% on Dirichlet(0.1). Its
250-label setting is --config.data.num_labeled=250.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config(settings: str = 'paper') -> ConfigDict:
    """`settings`: 'paper' or 'code', the authors' code."""
    config = default.get_config(settings)
    config.data.name = 'cifar10'
    config.data.num_labeled = 4000
    config.model.name = 'alexnet'
    return config
