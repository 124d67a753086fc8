"""Synthetic images with a data set's true shapes and counts, for benchmarks and smoke tests.

Every class has its own smooth pattern, to which each image adds noise, so that a model has something to learn. As in a
real data set, the images are the same in every run, regardless of its seed. In sets with dense tasks, an image shows an
object: a rectangle at a random place, in which levels are inverted. All targets describe this object. If test maps have
sizes of their own, each is three quarters of the largest in one dimension, alternately in height and width; the targets
of tasks of objects are as large as the image then, too.
"""

from collections.abc import Mapping

import numpy as np
from PIL import Image

from semisfl_jax.base.errors import UserError, use_one_of
from semisfl_jax.core import rng
from semisfl_jax.data import dataset, maps, objects, scenes
from semisfl_jax.data.catalog import KNOWN, Known
from semisfl_jax.tasks import IGNORED, PARTS

SEED = 0
GRID = 4  # a pattern is a GRID × GRID picture, enlarged
DARKEST, LIGHTEST = 32, 191  # levels of a pattern, leaving headroom for the noise
NOISE_MASK = np.uint64(0x3F3F3F3F3F3F3F3F)  # noise is uniform on 0..63, eight pixels to a word
BYTES_AT_ONCE = 1 << 20


def make(name: str, size: int = 0, image_size: int = 0) -> dataset.Dataset:
    """Makes a synthetic data set.

    Args:
      name: a key of KNOWN.
      size: training images in total, 0 for the true number. If given, the test set has a fifth as many images, but at
        least one per class and at most the true number; STL-10 has at most 5,000 labeled images, and at most half of
        `size`.
      image_size: side of the images, 0 for the true one.

    Raises:
      UserError: the name is unknown.
    """
    if name not in KNOWN:
        raise UserError(f"no synthetic images for data set '{name}': {use_one_of(name, sorted(KNOWN))}")
    true = KNOWN[name]
    labeled, unlabeled, test = counts(name, size)
    shape = (image_size, image_size, true.image[2]) if image_size else true.image
    patterns = _patterns(name, true.classes, shape)
    arrays: dict[str, np.ndarray] = {}
    for split, count in (('train', labeled + unlabeled), ('test', test)):
        arrays[f'{split}_images'], arrays[f'{split}_labels'] = _draw(name, split, patterns, count)
    arrays['train_labels'][labeled:] = -1
    if true.original:
        sizes = np.tile(np.array(true.original, np.int32), (test, 1))
        rows = np.arange(test)
        sizes[rows, rows % 2] = sizes[rows, rows % 2] * 3 // 4
        arrays[dataset.TEST_SIZES] = sizes
    for split in dataset.SPLITS if true.outputs else ():
        images, labels = arrays[f'{split}_images'], arrays[f'{split}_labels']
        targets = _add_objects(name, split, images, labels, true, arrays.get(f'{split}_sizes'))
        arrays |= {dataset.target_key(split, *key.split('.')): values for key, values in targets.items()}
    return dataset.make(name, arrays, true.classes, fake=True, outputs=true.outputs)


def counts(name: str, size: int = 0) -> tuple[int, int, int]:
    """Returns the numbers of labeled, unlabeled and test images of a synthetic data set; arguments as in `make`."""
    true = KNOWN[name]
    if not size:
        return true.train, true.unlabeled, true.test
    labeled = min(true.train, size // 2) if true.unlabeled else size
    return labeled, size - labeled, min(true.test, max(true.classes, size // 5))


def _patterns(name: str, classes: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Draws one smooth pattern per class, [K, H, W, C] uint8."""
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
    """Draws images [count, H, W, C] uint8 and labels [count] int32, classes as equal as possible, in random order."""
    generator = rng.host(SEED, 'fake', name, split)
    labels = generator.permutation(np.arange(count, dtype=np.int32) % len(patterns))
    images = np.empty((count, *patterns.shape[1:]), np.uint8)
    step = max(1, BYTES_AT_ONCE // patterns[0].size)
    for start in range(0, count, step):
        block = images[start : start + step]
        np.take(patterns, labels[start : start + step], axis=0, out=block, mode='clip')
        # Draws whole words: single bytes would take thirty times as long.
        words = generator.integers(0, 2**64, -(-block.size // 8), dtype=np.uint64) & NOISE_MASK
        block += words.astype('<u8', copy=False).view(np.uint8)[: block.size].reshape(block.shape)
    return images, labels


def _add_objects(
    name: str,
    split: str,
    images: np.ndarray,
    labels: np.ndarray,
    true: Known,
    sizes: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Inverts a rectangle in every image [n, h, w, C], in place, and returns the targets of dense tasks.

    The maps are [n, h, w] or, where they have `sizes` [n, 2] of their own, as large as the largest. Parts of tasks of
    objects are under 'TASK.PART'.
    """
    generator = rng.host(SEED, 'fake', name, split, 'objects')
    count, height, width = images.shape[:3]
    sides = generator.integers([height // 4, width // 4], [height // 2, width // 2], (count, 2), endpoint=True)
    corners = generator.integers(0, [height, width] - sides, endpoint=True)
    shape = (height, width) if sizes is None else sizes.max(axis=0)
    outputs = {task: number for task, number in true.outputs.items() if task not in PARTS}
    targets = {task: np.full((count, *shape), IGNORED, np.uint8) for task in outputs}
    parts = {key: np.zeros((count, *of), kind) for key, (of, kind) in objects.shapes(true, height).items()}
    for row, (corner, (tall, wide)) in enumerate(zip(corners, np.maximum(sides, 1), strict=True)):
        box = slice(corner[0], corner[0] + tall), slice(corner[1], corner[1] + wide)
        images[row][box] = 255 - images[row][box]
        extent = (height, width) if sizes is None else tuple(sizes[row].tolist())
        top, left = (
            slice(side.start * after // before, -(-side.stop * after // before))
            for side, before, after in zip(box, (height, width), extent, strict=True)
        )
        for task, number in outputs.items():
            targets[task][row, : extent[0], : extent[1]] = _target(task, number, int(labels[row]), (top, left), extent)
        for key, part in parts.items():
            _fill(key, part[row], int(labels[row]), box, true.outputs)
    return targets | parts


def _fill(key: str, part: np.ndarray, label: int, box: tuple[slice, slice], outputs: Mapping[str, int]) -> None:
    """Fills a part of the targets of an image, 'TASK.PART', all zeros, for an object of class `label` in `box`."""
    (top, bottom), (left, right) = ((side.start, side.stop) for side in box)
    match key.partition('.')[2]:
        case 'boxes':
            part[0] = left, top, right, bottom
        case 'labels':
            part[0] = 1 + label % outputs['instances']
        case 'masks':
            part[0] = 255
        case 'semantic':
            stuff = outputs['panoptic'] - outputs['instances']
            part[:] = label % stuff
            part[box] = stuff
        case 'joints':  # along a diagonal
            part[0] = np.linspace((left, top), (right - 1, bottom - 1), part.shape[1])
        case 'visible':
            part[0] = 2
        case 'known':
            part[:] = 1


def _target(task: str, outputs: int, label: int, box: tuple[slice, slice], shape: tuple[int, int]) -> np.ndarray:
    """Draws the map [H, W] of a task for an object of class `label` that fills `box`; numbers fit `outputs`."""
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
