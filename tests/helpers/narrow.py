"""The model families at a fraction of their width, and federations for a round of any method on them.

Kinds and order of layers, strides, dropout, BatchNorm and residual sums are the models' own, made by their own
builders, and so is their number but in four families, where layers like the one before them are left out: VGG13 has
six of its ten convolutions, the WideResNet one of four blocks in a stage, CNN13 one of its two stages, of a single
convolution, ResNet-18 two of its four. Few channels and images of 16 x 16 make a round that runs in milliseconds and
compiles in seconds.
"""

import functools
from functools import partial
from unittest import mock

import jax
import numpy as np

from configs import default
from semisfl_jax import config as config_lib
from semisfl_jax import core
from semisfl_jax.models import dense_zoo, zoo
from semisfl_jax.training import experiment
from semisfl_jax.training.driver import Driver
from tests.helpers import needs, rows

# VGG16 differs from VGG13 in the number of layers alone, the MLPs from mlp5000 in number and width, FedAvg's CNN from
# the one for SVHN in its padding, and ResNet-50 from -18 in the convolutions of a block
LIKE_OTHERS = {'vgg16', 'mlp200', 'mcmahan_2nn', 'mcmahan_cnn', 'resnet50'}
ARCHITECTURES = zoo.ARCHITECTURES | {rows.NORMED: partial(zoo.ARCHITECTURES['small_cnn'], norm=True)}
FAMILIES = {
    'small_cnn': {'channels': (6, 8), 'dense': 12},
    rows.NORMED: {'channels': (6, 8), 'dense': 12},
    'cnn': {'channels': (6, 8), 'dense': 12},
    'alexnet': {'channels': (6, 8, 8, 6, 6), 'dense': 16},
    'vgg13': {'channels': (6, 6, 8, 8, 8), 'dense': 16, 'depths': (1, 1, 1, 1, 2)},
    'resnet9': {'channels': (4, 6, 8, 8)},
    'resnet9_plain': {'channels': (4, 6, 8, 8)},
    'wresnet28x2': {'channels': (4, 4, 6, 8), 'depth': 1},  # its blocks with and without a projection
    'mlp5000': {'dense': 12},
    'cnn13': {'channels': (6, 6, 8, 8), 'depths': (1,)},
    'resnet18': {'depths': (1, 1), 'stem': 4, 'widths': (4, 6)},  # blocks without and with a projection
}
DENSE = {'scene_net': (partial(dense_zoo.SceneEncoder, 4, (4, 6, 8)), partial(dense_zoo.SceneDecoder, width=6))}
CLIENTS, ACTIVE, SIDE = 10, 8, 16
ROUND = {
    'data.name': 'cifar10',
    'data.fake': True,
    'data.fake_size': 200,
    'data.num_labeled': 40,
    'data.image_size': SIDE,
    'federation.num_clients': CLIENTS,
    'federation.num_active': ACTIVE,
    'federation.alpha': 0.5,
    'model.projection_dim': 8,
    'k_s': 2,
    'k_u': 2,
    'batch_size': 2,
    'server_batch_size': 4,
    'queue_size': 16,
    'threshold': 0.0,  # every pseudo-label counts,
    'weight_decay': 0.0,  # and nothing moves but by a gradient
    'augment.flip': False,  # views are compiled in the true-size rounds and in other tests
    'augment.crop': 0.0,
    'augment.operations': 0,
    'augment.cutout': 0,
}


@functools.cache
def build(family, algorithm, devices=1, partition='uniform', convolution='auto', client_map='auto'):
    """The experiment of a method on a narrow model."""
    config = default.get_config()
    config.update_from_flattened_dict(ROUND | needs.changes(algorithm) | dict(rows.rows()[algorithm].keys))
    config.model.update(name=family, convolution=convolution)
    config.federation.update(partition=partition, client_map=client_map)
    config.parallel.devices = devices
    if family in DENSE:
        families, model = dense_zoo.DENSE_ARCHITECTURES, partial(encoder_decoder, *DENSE[family])
    else:
        families, model = zoo.ARCHITECTURES, partial(ARCHITECTURES[family], **FAMILIES[family])
    with mock.patch.dict(families, {family: model}):
        config_lib.check(config)
        return experiment.build(config_lib.resolve(config))


def encoder_decoder(encoder, decoder, outputs, compute, output_stride):
    return dense_zoo.EncoderDecoder(encoder(compute=compute), decoder(outputs, compute=compute))


@functools.cache
def initial(family, algorithm):
    """The first state of a method, on the host. Its small programs are shared by the methods of a family."""
    built = build(family, algorithm)
    return jax.device_get(built.algorithm.init(built.key))


def inputs(family, algorithm, devices, partition):
    """Federation and cohort of the first round. Both partitions have tables of one shape, so one program takes both."""
    built = build(family, algorithm, devices, partition)
    federation, cohort, _ = next(Driver([built]).inputs(0))
    count = len(built.dataset.train_images)

    def wide(table):
        table = np.asarray(table)
        return np.pad(table, ((0, 0), (0, count - table.shape[1]))) if table.shape[1] else table

    index, labeled_index = core.clients.replicate(built.mesh, (wide(federation.index), wide(federation.labeled_index)))
    return federation.replace(index=index, labeled_index=labeled_index), cohort
