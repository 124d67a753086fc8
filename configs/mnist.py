"""MNIST, 100 labels, clients with unequal data: about 10 minutes on 2 cores.

    python launch.py --config=configs/mnist.py --config.data.data_dir=DIR

60,000 images of 28x28 in 10 classes, Dirichlet(0.1), the CNN the paper uses for SVHN. Not in the paper; rounds are a
fifth as long as the paper's, and there are only 200 of them, so that a run is feasible on a laptop. Images are not
flipped, because a mirrored digit is a different digit or no digit at all.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import fashion_mnist


def get_config(settings: str = 'paper') -> ConfigDict:
    """`settings`: 'paper' or 'code', the authors' code."""
    config = fashion_mnist.get_config(settings)
    config.data.name = 'mnist'
    config.data.num_labeled = 100
    config.augment.flip = False
    return config
