"""FedAvg on MNIST as in its paper (McMahan et al., 2017): minutes on 2 cores.

    python launch.py --config=configs/fedavg.py --config.data.data_dir=DIR
    python launch.py --config=configs/fedavg.py --config.data.data_dir=DIR --config.federation.partition=classes
    python launch.py --config=configs/fedavg.py --config.data.data_dir=DIR --config.model.name=mcmahan_2nn

DIR has MNIST as prepared for tensorflow-datasets; without it, --config.data.name=digits
--config.federation.num_clients=20 runs on scikit-learn's digits. Each of 100 clients has 600 images with their labels;
in a round, 10 of them make one pass over theirs in batches of 10, with plain SGD and no augmentation, and the server
averages their models. No image is at the server. With partition=classes every client has images of two digits, the
paper's pathological non-IID split. The paper tunes the learning rate for each row of its tables and does not give it:
here it is 0.1, a choice of ours.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.algorithm = 'fedavg'
    config.rounds = 50
    config.checkpoint_every = 10
    config.parallel.devices = 0  # on a CPU one for each core, which train different clients

    config.data.name = 'mnist'
    config.data.client_labels = -1

    config.federation.num_clients = 100
    config.federation.num_active = 10
    config.federation.partition = 'uniform'

    config.model.name = 'mcmahan_cnn'

    config.k_s = 0
    config.local.objective = 'supervised'
    config.local.epochs = 1
    config.batch_size = 10
    config.lr = 0.1
    config.lr_min = 0.1
    config.momentum = 0.0
    config.nesterov = False
    config.weight_decay = 0.0

    config.augment.supervised = 'weak'
    config.augment.flip = False
    config.augment.crop = 0.0
    return config
