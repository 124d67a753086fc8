"""COCO, the four tasks of M-Fed's Table 3, with ResNet-50; for an accelerator.

    python launch.py --config=configs/coco.py --config.data.image_folder=DIR --config.model.weights=FILE
    python launch.py --config=configs/coco.py --config.model.name=deeplabv3_resnet101
    python launch.py --config=configs/coco.py --config.data.fake=True --config.data.fake_size=20 \\
        --config.data.image_size=64 --config.batch_size=2 --config.rounds=1

DIR has the pictures and annotations as cocodataset.org has them; FILE is a state dict of torchvision's ResNet-50,
trained on ImageNet. Instances are found by Mask R-CNN, segments by Panoptic FPN, people by associative embedding on the
same pyramid, stuff by DeepLabV3; all have one encoder. All else is as in configs/coco_panoptic.py.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import coco_panoptic


def get_config() -> ConfigDict:
    config = coco_panoptic.get_config()
    config.data.name = 'coco'
    config.data.tasks = ('instances', 'panoptic', 'persons', 'stuff')

    config.federation.num_clients = 20
    config.federation.num_active = 20
    return config
