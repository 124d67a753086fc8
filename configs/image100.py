"""IMAGE-100 (100 ImageNet classes), 5,000 labels, VGG16; for a large accelerator.

    python launch.py --config=configs/image100.py --config.data.image_folder=DIR --config.data.class_list=FILE
    python launch.py --config=configs/image100.py --config.data.fake=True --config.data.fake_size=600 \\
        --config.data.num_labeled=200 --config.rounds=1 --config.pre_rounds=0 --config.k_s=1 --config.k_u=1 \\
        --config.batch_size=2 --config.server_batch_size=2 --config.eval_batch_size=10

DIR is an ImageNet folder with train/ and val/, FILE names one class (WordNet id) per line; without DIR the images
come from TFDS imagenet2012. The authors' class list is not public, so results compare only loosely with the paper's
66.6% (uniform) and 56.1% (Dirichlet(0.1)). The first 20 rounds are supervised only. The images, about 8 GB, stay in
host memory; --config.data.residency=device puts them on the accelerator. The second command takes 2 minutes and
9 GB on 2 cores.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config(settings: str = 'paper') -> ConfigDict:
    """`settings`: 'paper' or 'code', the authors' code."""
    config = default.get_config(settings)
    config.eval_batch_size = 100
    config.data.name = 'image100'
    config.data.num_labeled = 5000
    config.data.image_size = 144
    config.data.residency = 'host'
    config.semifl.batch_norm_data = 'server'  # client images are not on the device
    config.model.name = 'vgg16'
    config.model.recompute = True  # 16 GiB in place of 27 for the activations of ten clients
    config.server_batch_size = 128
    config.pre_rounds = 20
    return config
