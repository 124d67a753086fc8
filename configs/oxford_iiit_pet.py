"""Oxford-IIIT Pet, two dense tasks on photographs of cats and dogs: hours on 2 cores.

    python launch.py --config=configs/oxford_iiit_pet.py --config.data.data_dir=DIR
    python launch.py --config=configs/oxford_iiit_pet.py --config.data.data_dir=DIR \\
        --config.model.name=deeplabv3plus_resnet18 --config.model.weights=FILE

DIR has the set as prepared for tensorflow-datasets: 3,680 images for training and 3,669 for testing, here of 128x128.
Tasks: semantic segmentation of background, pet and the border between them, and saliency of the pet. Not in M-Fed's
paper: five clients a task, 20 rounds of one pass, and a small network. The second command takes a larger one on an
accelerator; FILE is a state dict of torchvision's ResNet-18.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import digit_scenes


def get_config() -> ConfigDict:
    config = digit_scenes.get_config()
    config.eval_batch_size = 50

    config.data.name = 'oxford_iiit_pet'
    config.data.tasks = ('semseg', 'saliency')

    config.federation.num_clients = 10
    config.federation.num_active = 10

    config.augment.flip = True
    return config
