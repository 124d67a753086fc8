"""Fashion-MNIST, 1,000 labels, clients with unequal data: about 10 minutes on 2 cores.

    python launch.py --config=configs/fashion_mnist.py --config.data.data_dir=DIR
    python launch.py --config=configs/fashion_mnist.py --config.data.data_dir=DIR --config.data.num_labeled=100

60,000 images of 28x28 in 10 classes of clothing, Dirichlet(0.1), the CNN the paper uses for SVHN. Not in the paper;
rounds are a fifth as long as the paper's, and there are only 200 of them, so that a run is feasible on a laptop.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config(settings: str = 'paper') -> ConfigDict:
    """`settings`: 'paper' or 'code', the authors' code."""
    config = default.get_config(settings)
    config.rounds = 200
    config.eval_every = 10
    config.checkpoint_every = 20

    config.data.name = 'fashion_mnist'
    config.data.num_labeled = 1000

    config.federation.partition = 'dirichlet'

    config.model.name = 'cnn'

    config.k_s = 20
    config.k_u = 10
    config.lr_rounds = 200

    config.frequency.period = 2
    config.frequency.horizon = 20
    config.frequency.check_every = 20
    return config
