"""SVHN (cropped), 1,000 labels, the paper's CNN; for an accelerator.

    python launch.py --config=configs/svhn.py --config.data.data_dir=DIR
    python launch.py --config=configs/svhn.py --config.data.fake=True --config.rounds=1 --config.k_s=2 --config.k_u=2

73,257 images of 32x32x3 in 10 classes; labels are drawn at their natural frequency. The supervised phase sees weak
views, as in the authors' code (the paper says strong ones: --config.augment.supervised=strong). Images are flipped,
as in the authors' code, although a mirrored digit is not a digit. The paper reports 91.4% on uniform data and 87.2% on
Dirichlet(0.1).
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config(settings: str = 'paper') -> ConfigDict:
    """`settings`: 'paper' or 'code', the authors' code."""
    config = default.get_config(settings)
    config.data.name = 'svhn_cropped'
    config.data.num_labeled = 1000
    config.model.name = 'cnn'
    config.augment.supervised = 'weak'
    return config
