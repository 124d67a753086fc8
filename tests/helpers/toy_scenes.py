"""A dense data set small enough for every test: bright squares on noise, with two tasks that squares decide."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from semisfl_jax import data
from semisfl_jax.data import dataset
from semisfl_jax.models import dense_zoo

NAME, SIDE, TRAIN, TEST = 'toy_scenes', 16, 48, 12
TASKS = ('semseg', 'depth')
NEEDS = {  # of every configuration
    'data.name': NAME,
    'data.tasks': TASKS,
    'data.fake': False,
    **dict.fromkeys(('data.fake_size', 'data.image_size', 'pre_rounds'), 0),
    **dict.fromkeys(('data.image_folder', 'data.class_list'), ''),
    'federation.num_clients': 10,
    'federation.num_active': 8,
    'model.name': 'scene_net',
    'local.epochs': 1,
    'sampling': 'epochs',
}


def load(image_size=0):
    """48 training and 12 test images [n, 16, 16, 3]: 'semseg' 0 or the square's class, 'depth' its side, 254 beyond."""
    rng = np.random.default_rng(0)
    count = TRAIN + TEST
    images = rng.integers(0, 100, (count, SIDE, SIDE, 3), dtype=np.uint8)
    semseg, depth = np.zeros((count, SIDE, SIDE), np.uint8), np.full((count, SIDE, SIDE), 254, np.uint8)
    labels = rng.integers(0, 2, count).astype(np.int32)
    for image, kind, classes, far in zip(images, labels, semseg, depth, strict=True):
        side = int(rng.integers(5, 9))
        top, left = rng.integers(0, SIDE - side + 1, 2)
        square = slice(top, top + side), slice(left, left + side)
        image[square] = (220, 60, 60) if kind else (60, 220, 60)
        classes[square], far[square] = kind + 1, 10 * side
    depth[::5, 0] = 255  # no truth
    arrays = {'train_images': images[:TRAIN], 'train_labels': labels[:TRAIN]}
    arrays |= {'test_images': images[TRAIN:], 'test_labels': labels[TRAIN:]}
    made = dataset.make(NAME, arrays, num_classes=2)
    targets = {
        'semseg': dataset.Targets(semseg[:TRAIN], semseg[TRAIN:], 3),
        'depth': dataset.Targets(depth[:TRAIN], depth[TRAIN:], 1),
    }
    return dataclasses.replace(made, targets=targets)


class Encoder(nn.Module):
    """Two maps, of single pixels and of 2 x 2 at half the size: a model that compiles at once."""

    @nn.compact
    def __call__(self, images, train):
        fine = nn.relu(nn.Dense(6)(images))
        norm = nn.BatchNorm(not train, momentum=0.9)
        return fine, norm(nn.relu(nn.Dense(6)(fine[:, ::2, ::2])))


class Decoder(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, maps, train):
        fine, coarse = maps
        return nn.Dense(self.outputs)(jnp.concatenate([fine, coarse.repeat(2, 1).repeat(2, 2)], axis=-1))


def small_model(patch):
    """Puts the small model in the place of `scene_net`."""

    def build(outputs, compute, output_stride):
        return dense_zoo.EncoderDecoder(Encoder(), Decoder(outputs))

    patch.setitem(dense_zoo.DENSE_ARCHITECTURES, 'scene_net', build)


data.READERS.setdefault(NAME, load)
