"""STL-10, 5,000 labeled and 100,000 unlabeled images, VGG13; for an accelerator.

    python launch.py --config=configs/stl10.py --config.data.data_dir=DIR
    python launch.py --config=configs/stl10.py --config.data.fake=True --config.data.fake_size=600 \\
        --config.data.num_labeled=100 --config.rounds=1 --config.k_s=1 --config.k_u=1 --config.batch_size=2 \\
        --config.server_batch_size=4 --config.eval_batch_size=10

96x96x3 in 10 classes, client batches of 32. All clients get equal shares, because the classes of the
unlabeled images are unknown. The paper reports 92.8%. --config.data.client_labels=1000 (up to 4000) gives that many of
the 5,000 labels to the clients (Fig. 10).
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config(settings: str = 'paper') -> ConfigDict:
    """`settings`: 'paper' or 'code', the authors' code."""
    config = default.get_config(settings)
    config.eval_batch_size = 200
    config.data.name = 'stl10'
    config.data.num_labeled = 5000
    config.model.name = 'vgg13'
    config.batch_size = 32
    return config
