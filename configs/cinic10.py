"""CINIC-10, 5,000 labels, ResNet-9; for an accelerator.

    python launch.py --config=configs/cinic10.py --config.data.image_folder=DIR
    python launch.py --config=configs/cinic10.py --config.data.fake=True --config.data.fake_size=600 \\
        --config.data.num_labeled=100 --config.rounds=1 --config.k_s=1 --config.k_u=1 --config.batch_size=2 \\
        --config.server_batch_size=4 --config.eval_batch_size=10

DIR is the folder in which CINIC-10 is published (Darlow et al., 2018), with train/ and test/; without it the images
come from cinic10/ in the TFDS data directory. 32x32x3 in CIFAR-10's classes, 90,000 images to train on and 90,000 to
test; the 90,000 for validation are not used. Data, number of labels and model are FedDure's; all else is SemiSFL's,
whose paper has no results on CINIC-10.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config(settings: str = 'paper') -> ConfigDict:
    """`settings`: 'paper' or 'code', the authors' code."""
    config = default.get_config(settings)
    config.data.name = 'cinic10'
    config.data.num_labeled = 5000
    config.model.name = 'resnet9'
    return config
