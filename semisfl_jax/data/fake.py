"""Synthetic images of a data set's true shapes and counts, for benchmarks and smoke tests.

Every class has its own smooth pattern, to which each image adds noise, so that a model has something to learn. Like
those of a real data set, the images are the same in every run, regardless of its seed. In sets of dense tasks, an image
shows an object: a rectangle at a random place, in which levels are inverted. All target maps are of this object. Where
those for testing have sizes of their own, they are in turn three quarters as high as the largest and as wide, or the
reverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError, use_one_of
from semisfl_jax.data import bundled, dataset, maps, pascal_context, scenes, sources, tfds_dense
from semisfl_jax.tasks import IGNORED

SEED = 0
GRID = 4  # a pattern is a GRID × GRID picture, enlarged
DARKEST, LIGHTEST = 32, 191  # levels of a pattern, leaving headroom for the noise
NOISE_MASK = np.uint64(0x3F3F3F3F3F3F3F3F)  # noise is uniform on 0..63, eight pixels to a word
BYTES_AT_ONCE = 1 << 20


class Shape(NamedTuple):
    train: int  # labeled training images
    unlabeled: int
    test: int
    image: tuple[int, int, int]  # H, W, C
    classes: int
    outputs: Mapping[str, int] = MappingProxyType({})  # of dense tasks
    original: tuple[int, int] | None = None  # height and width of the largest test map, if they have sizes of their own


_COCO = tfds_dense.SETS[tfds_dense.COCO]
SHAPES = {
    'digits': Shape(1_437, 0, 360, (8, 8, 1), 10),
    'mnist': Shape(60_000, 0, 10_000, (28, 28, 1), 10),
    'fashion_mnist': Shape(60_000, 0, 10_000, (28, 28, 1), 10),
    'cifar10': Shape(50_000, 0, 10_000, (32, 32, 3), 10),
    'cifar100': Shape(50_000, 0, 10_000, (32, 32, 3), 100),
    'cinic10': Shape(90_000, 0, 90_000, (32, 32, 3), 10),
    'svhn_cropped': Shape(73_257, 0, 26_032, (32, 32, 3), 10),
    'stl10': Shape(5_000, 100_000, 8_000, (96, 96, 3), 10),
    # ImageNet has at most 1,300 training and exactly 50 validation images per class.
    'image100': Shape(130_000, 0, 5_000, (144, 144, 3), 100),
    'digit_scenes': Shape(2_000, 0, 400, (48, 48, 3), 10, scenes.outputs(len(bundled.STUFF))),
    'mnist_scenes': Shape(10_000, 0, 2_000, (48, 48, 3), 10, scenes.outputs(scenes.MNIST_STUFF)),
    'pascal_context': Shape(4_998, 0, 5_105, (512, 512, 3), 21, pascal_context.OUTPUTS, pascal_context.ORIGINAL),
    tfds_dense.PETS: Shape(3_680, 0, 3_669, (128, 128, 3), 37, tfds_dense.SETS[tfds_dense.PETS].outputs),
    tfds_dense.COCO: Shape(118_287, 0, 5_000, (256, 256, 3), 133, _COCO.outputs, _COCO.original),
}


def make(name: str, size: int = 0, image_size: int = 0) -> dataset.Dataset:
    """A synthetic data set.

    Args:
      name: canonical name, a key of SHAPES.
      size: training images in total, 0 for the true number. The test set then has a fifth as many images, but at
        least one per class and at most the true number; of STL-10's images at most 5,000, and at most half of them,
        are labeled.
      image_size: side of the images, 0 for the true one.

    Raises:
      UserError: unknown name or negative size.
    """
    if name not in SHAPES:
        raise UserError(f"no synthetic images for data set '{name}': {use_one_of(name, sorted(SHAPES))}")
    if size < 0:
        raise UserError(f'config.data.fake_size is {size}: use a positive number of images, or 0 for the true number')
    true = SHAPES[name]
    labeled, unlabeled, test = counts(name, size)
    shape = (image_size, image_size, true.image[2]) if image_size else true.image
    patterns = _patterns(name, true.classes, shape)
    train_images, train_labels = _draw(name, 'train', patterns, labeled + unlabeled)
    train_labels[labeled:] = -1
    test_images, test_labels = _draw(name, 'test', patterns, test)
    arrays = {
        'train_images': train_images,
        'train_labels': train_labels,
        'test_images': test_images,
        'test_labels': test_labels,
    }
    if true.original:
        arrays[dataset.TEST_SIZES] = _sizes(test, true.original)
    for split in dataset.SPLITS if true.outputs else ():
        images, labels = arrays[f'{split}_images'], arrays[f'{split}_labels']
        targets = _add_objects(name, split, images, labels, true.outputs, arrays.get(f'{split}_sizes'))
        arrays |= {dataset.target_key(split, task): values for task, values in targets.items()}
    return dataset.make(name, arrays, true.classes, fake=True, outputs=true.outputs)


def counts(name: str, size: int = 0) -> tuple[int, int, int]:
    """Numbers of labeled, unlabeled and test images of a synthetic data set, arguments as in `make`."""
    true = SHAPES[name]
    if not size:
        return true.train, true.unlabeled, true.test
    labeled = min(true.train, size // 2) if true.unlabeled else size
    return labeled, size - labeled, min(true.test, max(true.classes, size // 5))


def _patterns(name: str, classes: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Smooth patterns [K, H, W, C] uint8."""
    height, width, channels = shape
    grids = rng.host(SEED, 'fake', name, 'patterns').integers(
        DARKEST, LIGHTEST, (classes, channels, GRID, GRID), dtype=np.uint8, endpoint=True
    )
    enlarged = [
        np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BILINEAR))
        for grid in grids.reshape(-1, GRID, GRID)
    ]
    return np.stack(enlarged).reshape(classes, channels, height, width).transpose(0, 2, 3, 1).copy()


def _draw(name: str, split: str, patterns: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, H, W, C] uint8 and labels [count] int32, classes as equal as possible, in random order."""
    generator = rng.host(SEED, 'fake', name, split)
    labels = generator.permutation(np.arange(count, dtype=np.int32) % len(patterns))
    images = np.empty((count, *patterns.shape[1:]), np.uint8)
    step = max(1, BYTES_AT_ONCE // patterns[0].size)
    for start in range(0, count, step):
        block = images[start : start + step]
        np.take(patterns, labels[start : start + step], axis=0, out=block, mode='clip')
        # Whole words are drawn because single bytes would take thirty times as long.
        words = generator.integers(0, 2**64, -(-block.size // 8), dtype=np.uint64) & NOISE_MASK
        block += words.astype('<u8', copy=False).view(np.uint8)[: block.size].reshape(block.shape)
    return images, labels


def _sizes(count: int, largest: tuple[int, int]) -> np.ndarray:
    """Heights and widths [n, 2] int32 of test maps that have sizes of their own."""
    sizes = np.tile(np.array(largest, np.int32), (count, 1))
    rows = np.arange(count)
    sizes[rows, rows % 2] = sizes[rows, rows % 2] * 3 // 4
    return sizes


def _add_objects(
    name: str,
    split: str,
    images: np.ndarray,
    labels: np.ndarray,
    outputs: Mapping[str, int],
    sizes: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Inverts a rectangle in every image [n, h, w, C], in place, and returns the maps of dense tasks.

    These are [n, h, w] or, where they have `sizes` [n, 2] of their own, as large as the largest.
    """
    generator = rng.host(SEED, 'fake', name, split, 'objects')
    count, height, width = images.shape[:3]
    sides = generator.integers([height // 4, width // 4], [height // 2, width // 2], (count, 2), endpoint=True)
    corners = generator.integers(0, [height, width] - sides, endpoint=True)
    shape = (height, width) if sizes is None else sizes.max(axis=0)
    targets = {task: np.full((count, *shape), IGNORED, np.uint8) for task in outputs}
    for row, (corner, (tall, wide)) in enumerate(zip(corners, np.maximum(sides, 1), strict=True)):
        box = slice(corner[0], corner[0] + tall), slice(corner[1], corner[1] + wide)
        images[row][box] = 255 - images[row][box]
        own = (height, width) if sizes is None else tuple(sizes[row].tolist())
        box = _scaled(box[0], height, own[0]), _scaled(box[1], width, own[1])
        for task, number in outputs.items():
            targets[task][row, : own[0], : own[1]] = _target(task, number, int(labels[row]), box, own)
    return targets


def _scaled(side: slice, length: int, own: int) -> slice:
    """The side of a box in an image of `length`, in one of `own`."""
    return slice(side.start * own // length, -(-side.stop * own // length))


def _target(task: str, outputs: int, label: int, box: tuple[slice, slice], shape: tuple[int, int]) -> np.ndarray:
    """The map [H, W] of a task for an object of class `label` that fills `box`, with numbers that fit `outputs`."""
    target = np.zeros(shape, np.uint8)
    tall = box[0].stop - box[0].start
    if task == 'semseg':
        target[box] = 1 + label % (outputs - 1)
    elif task == 'parts':  # from top to bottom
        target[box] = 1 + np.arange(tall)[:, None] * (outputs - 1) // tall
    elif task == 'depth':
        target[box] = tall * scenes.NEAREST // shape[0]
    elif task == 'stuff':  # around the object
        target[:] = label % outputs
        target[box] = IGNORED
    elif task == 'keypoints':
        target[box[0].start, box[1].start], target[box[0].stop - 1, box[1].stop - 1] = 1, outputs
    else:  # saliency and edges
        target[box] = 1
    return maps.borders(target).astype(np.uint8) if task == 'edges' else target


def shape_only_dataset(options: ConfigDict) -> dataset.Dataset:
    """The data set that `config.data` asks for, every image one and the same byte: for programs that are never run.

    Labels are 0 .. K-1 in turn, so a split that depends on labels is like that of the true data, but not equal to it.
    A set whose shapes are not known in advance is loaded.

    Raises:
      UserError: as `sources.load`.
    """
    if sources.outline(options) is None:
        return sources.load(options)
    (image, classes), name = sources.shape(options), sources.ALIASES.get(options.name, options.name)
    labeled, unlabeled, test = counts(name, options.fake_size if options.fake else 0)
    train_labels = np.arange(labeled + unlabeled, dtype=np.int32) % classes
    train_labels[labeled:] = -1
    outputs, original = SHAPES[name].outputs, SHAPES[name].original
    maps = original or image[:2]
    return dataset.Dataset(
        name=name,
        train_images=_filled(labeled + unlabeled, *image),
        train_labels=train_labels,
        test_images=_filled(test, *image),
        test_labels=np.arange(test, dtype=np.int32) % classes,
        num_classes=classes,
        mean=(0.5,) * image[2],
        std=(0.5,) * image[2],
        fake=True,
        checksum='',
        targets={
            task: dataset.Targets(_filled(labeled + unlabeled, *image[:2]), _filled(test, *maps), number)
            for task, number in outputs.items()
        },
        test_sizes=np.broadcast_to(np.array(original, np.int32), (test, 2)) if original else None,
    )


def _filled(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.uint8(0), shape)
