"""MNIST's digits on CIFAR-10's photographs, seven dense tasks: an hour or two on 2 cores.

    python launch.py --config=configs/mnist_scenes.py --config.data.data_dir=DIR
    python launch.py --config=configs/mnist_scenes.py --config.data.data_dir=DIR --config.data.num_unlabeled=1000

DIR has both sets as prepared for tensorflow-datasets. 10,000 training and 2,000 test scenes of 48x48; all else is as in
configs/digit_scenes.py. In the second command, the clients of each task share 1,000 of the scenes.
"""

from ml_collections import ConfigDict

from semisfl_jax.configs import digit_scenes


def get_config() -> ConfigDict:
    config = digit_scenes.get_config()
    config.data.name = 'mnist_scenes'
    return config
