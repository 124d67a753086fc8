"""scikit-learn's handwritten digits, 40 labels: no download, up to 3 minutes on 2 cores.

    python launch.py --config=configs/digits.py

1,797 images of 8x8 in 10 classes; 10 clients with very unequal data (Dirichlet, alpha 0.1), 5 of them active in a
round. All parts of the paper's method are included, on a small scale: short rounds, small batches, and windows of K_s
adaptation that suit the length of the run. Crop and cutout are scaled to 8x8. Images are not flipped, because a
mirrored digit is a different digit or no digit at all.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config(settings: str = 'paper') -> ConfigDict:
    """`settings`: 'paper' or 'code', the authors' code."""
    config = default.get_config(settings)
    config.rounds = 150
    config.eval_every = 5
    config.checkpoint_every = 25

    config.data.name = 'digits'
    config.data.num_labeled = 40

    config.federation.num_clients = 10
    config.federation.num_active = 5
    config.federation.partition = 'dirichlet'

    config.model.name = 'small_cnn'

    config.k_s = 20
    config.k_u = 10
    config.batch_size = 16
    config.server_batch_size = 16
    config.lr_rounds = 150
    config.queue_size = 128

    config.frequency.period = 2
    config.frequency.horizon = 20
    config.frequency.check_every = 20

    config.augment.flip = False
    config.augment.cutout = 4
    return config
