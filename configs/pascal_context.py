"""PASCAL-Context, four dense tasks, DeepLabV3+ on ResNet-18; for an accelerator.

    python launch.py --config=configs/pascal_context.py --config.data.image_folder=DIR --config.model.weights=FILE
    python launch.py --config=configs/pascal_context.py --config.data.fake=True --config.data.fake_size=40 \\
        --config.data.image_size=64 --config.batch_size=2 --config.local.epochs=1 --config.rounds=1

DIR is the unpacked archive PASCAL_MT.tgz of Maninis et al. (2019), with 4,998 images for training and 5,105 for
testing; FILE is a state dict of torchvision's ResNet-18, trained on ImageNet. Without FILE encoders start from random
weights. Of every task's clients, five, each makes five passes over its images in each of 20 rounds. M-Fed's paper gives
these numbers, the tasks and the models; all else is from multi-task learning code for this data (docs/ledger.md).
The images and maps, about 18 GB for training and testing, are on the accelerator; maps for testing have the size of the
image, to which predictions are resized for the scores.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.algorithm = 'm_fed'
    config.rounds = 20
    config.eval_every = 5
    config.eval_batch_size = 10
    config.checkpoint_every = 5

    config.data.name = 'pascal_context'
    config.data.tasks = ('semseg', 'parts', 'saliency', 'edges')
    config.data.client_labels = -1

    config.federation.num_clients = 20
    config.federation.num_active = 20
    config.federation.partition = 'uniform'
    config.federation.client_map = 'loop'  # one client fills a device

    config.model.name = 'deeplabv3plus_resnet18'

    config.k_s = 0
    config.local.epochs = 5
    config.batch_size = 12
    config.optimizer = 'adam'
    config.nesterov = False
    config.lr = 1e-4
    config.lr_min = 0.0
    config.lr_rounds = 0
    config.lr_schedule = 'poly'
    config.weight_decay = 1e-4

    config.augment.crop = 0.0
    config.augment.scale_min = 0.75
    config.augment.scale_max = 1.25
    config.augment.rotate = 20.0
    config.augment.supervised = 'weak'
    return config
