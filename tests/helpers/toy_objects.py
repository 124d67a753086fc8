"""A data set of objects small enough for tests: one or two squares on noise, as instances, segments and people."""

import dataclasses

import numpy as np

from semisfl_jax import data
from semisfl_jax.data import dataset
from semisfl_jax.models import dense_zoo
from semisfl_jax.models.detection import decoders
from semisfl_jax.models.detection.mask_rcnn import Settings
from tests.helpers import toy_scenes

NAME, SIDE, TRAIN, TEST = 'toy_objects', 32, 24, 6
OUTPUTS = {'semseg': 3, 'instances': 2, 'panoptic': 4, 'persons': 5}  # panoptic: two classes of stuff
TASKS = tuple(OUTPUTS)
MOST, GRID = 3, 8  # objects in an image, of which one at least pads; side of masks
NEEDS = toy_scenes.NEEDS | {
    'data.name': NAME,
    'data.tasks': TASKS,
    'augment.crop': 0.0,
    'federation.num_clients': 8,
    'federation.num_active': 8,
}


def load(image_size=0):
    """24 training and 6 test images [n, 32, 32, 3]; joints are the corners and the center of a square."""
    rng = np.random.default_rng(0)
    count = TRAIN + TEST
    images = rng.integers(0, 60, (count, SIDE, SIDE, 3), dtype=np.uint8)
    semseg = np.zeros((count, SIDE, SIDE), np.uint8)
    boxes, labels = np.zeros((count, MOST, 4), np.float32), np.zeros((count, MOST), np.uint8)
    joints, visible = np.zeros((count, MOST, 5, 2), np.float32), np.zeros((count, MOST, 5), np.uint8)
    stuff = np.repeat(rng.integers(0, 2, count).astype(np.uint8), SIDE**2).reshape(semseg.shape)
    images += (60 * stuff)[..., None]
    for row in range(count):
        for number in range(int(rng.integers(1, 3))):  # the second to the right of the first
            side, kind = int(rng.integers(8, 14)), row % 2
            top, left = int(rng.integers(0, SIDE - side)), int(rng.integers(0, 16 - side + 1)) + 16 * number
            square = slice(top, top + side), slice(left, left + side)
            images[row][square] = (250, 80, 80) if kind else (80, 250, 80)
            semseg[row][square], labels[row, number] = kind + 1, kind + 1
            boxes[row, number] = left, top, left + side, top + side
            ends = np.array([[left, top], [left + side - 1, top + side - 1]])
            joints[row, number] = [*((x, y) for y in ends[:, 1] for x in ends[:, 0]), ends.mean(axis=0)]
            visible[row, number] = 2
    masks = np.where(labels[..., None, None] > 0, np.full((1, 1, GRID, GRID // 8), 255), 0).astype(np.uint8)
    of_things = {'boxes': boxes, 'labels': labels, 'masks': masks}
    targets = {
        'semseg': {'': semseg},
        'instances': of_things,
        'panoptic': {**of_things, 'semantic': np.where(semseg > 0, 2, stuff).astype(np.uint8)},
        'persons': {'joints': joints, 'visible': visible, 'known': np.ones_like(semseg)},
    }
    whole = {'images': images, 'labels': labels[:, 0].astype(np.int32) - 1}
    arrays = {}
    for split, rows in (('train', slice(TRAIN)), ('test', slice(TRAIN, None))):
        arrays |= {f'{split}_{name}': array[rows] for name, array in whole.items()}
        for task, parts in targets.items():
            arrays |= {dataset.target_key(split, task, part): array[rows] for part, array in parts.items()}
    return dataset.make(NAME, arrays, num_classes=2, outputs=OUTPUTS)


def scale(side):
    """Of decoders that compile soon."""
    settings = Settings(
        (8, 12, 16), (1.0,), anchors=16, proposals_train=(12, 8), proposals=(12, 8), samples=8, detections=6
    )
    return decoders.Scale(8, 16, 32, settings)


def small_model(patch):
    """Puts the small model of `toy_scenes` in the place of `scene_net`, with decoders of objects."""

    def build(outputs, compute, output_stride):
        encoder = toy_scenes.Encoder()
        return dense_zoo.EncoderDecoder(encoder, toy_scenes.Decoder(outputs), encoder, scale)

    patch.setitem(dense_zoo.DENSE_ARCHITECTURES, 'scene_net', build)


def without(*tasks):
    """Returns the function of `load` without some tasks."""

    def read(image_size=0):
        made = load()
        return dataclasses.replace(made, targets={k: v for k, v in made.targets.items() if k not in tasks})

    return read


data.READERS.setdefault(NAME, load)
