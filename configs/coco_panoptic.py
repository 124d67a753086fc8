"""COCO, two dense tasks, DeepLabV3 on ResNet-50; for an accelerator.

    python launch.py --config=configs/coco_panoptic.py --config.data.data_dir=DIR --config.model.weights=FILE
    python launch.py --config=configs/coco_panoptic.py --config.model.name=deeplabv3_resnet101
    python launch.py --config=configs/coco_panoptic.py --config.data.fake=True --config.data.fake_size=20 \\
        --config.data.image_size=64 --config.batch_size=2 --config.rounds=1

DIR has coco/2017_panoptic as prepared for tensorflow-datasets: 118,287 images for training, 5,000 for testing, here of
256x256; FILE is a state dict of torchvision's ResNet-50, trained on ImageNet. Each task has five clients, which pass
once over their images in each of 12 rounds, as in M-Fed's Table 3, whose four tasks are in configs/coco.py. Stuff has
the 53 classes of panoptic segmentation, and a task of semantic segmentation stands beside it. The
optimizer is that of configs/pascal_context.py. Of the views only flips are: no source names a scale or a rotation for
COCO in these experiments, and there is neither. The images and maps, about 44 GB, are on the accelerator; maps for
testing have the size of the image, to which predictions are resized for the scores.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import pascal_context


def get_config() -> ConfigDict:
    config = pascal_context.get_config()
    config.rounds = 12
    config.eval_every = 4
    config.checkpoint_every = 4

    config.data.name = 'coco/2017_panoptic'
    config.data.tasks = ('stuff', 'semseg')

    config.federation.num_clients = 10
    config.federation.num_active = 10

    config.model.name = 'deeplabv3_resnet50'

    config.local.epochs = 1

    config.augment.scale_min = 1.0
    config.augment.scale_max = 1.0
    config.augment.rotate = 0.0
    return config
