"""Scenes: gray sprites painted over each other on a photograph, with the exact truth of ten dense tasks.

A scene is drawn as a recipe, in pixels of a scene of 48 × 48, and painted at any side. All arithmetic is in integers,
so the same ingredients give the same bytes on every machine.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng
from semisfl_jax.data import cache, maps, objects, tfds_source
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.data.decode import CHUNK, Chunk, Source, Stream
from semisfl_jax.tasks import IGNORED, PARTS, truth

VERSION = 2  # increase it when the same ingredients give other bytes, to renew caches
SEED = 2020  # fixes the scenes, independent of the run's seed
SIDE = 48  # of a scene, unless resized
SPRITES = (2, 4)  # fewest and most in a scene
SPRITE_SIDES = (14, 26)  # shortest and longest side of a sprite's box
PLACES = 24  # drawn per sprite; the first that hides little of other sprites wins
MOST_OVERLAP = 0.35  # share of the smaller of two boxes
COLORS = 24  # drawn per sprite; the first that stands out wins
CONTRAST = 260  # from the background and from other sprites, a sum over three channels
STROKE = 112  # level of a sprite from which a pixel belongs to it
SOFTNESS = 32  # levels on either side of STROKE over which the color fades in
PART_CLASSES = (0, 2, 4, 6, 8)  # classes whose sprites have parts
QUARTERS = 4
NEAREST = 254  # depth of the nearest sprite
TOP, BOTTOM = 1, 2  # types of keypoints
DIGITS, JOINTS = 10, 5  # of instances, and of persons
GRID = 32  # side of an object's mask over its box
TRUTH_BYTES = 1024  # of the annotations of an image

TASKS = tuple(task for task in KNOWN['mnist_scenes'].outputs if task not in PARTS)


class Sprite(NamedTuple):
    """A sprite in a scene, in pixels of a scene of SIDE × SIDE."""

    image: int  # its row in `Ingredients.sprites`
    top: int
    left: int
    side: int
    color: tuple[int, int, int]


class Scene(NamedTuple):
    """The recipe of a scene."""

    ground: tuple[int, ...]  # the background, as `Ingredients.ground` takes it
    sprites: tuple[Sprite, ...]  # in painting order: the nearest, which is the largest, is last


class Ingredients(NamedTuple):
    """Sprites and backgrounds for the scenes of one split."""

    sprites: np.ndarray  # [n, h, w] uint8, bright strokes on a dark ground
    labels: np.ndarray  # [n], 0..9
    draw_ground: Callable[[np.random.Generator], tuple[int, ...]]
    ground: Callable[[tuple[int, ...]], tuple[np.ndarray, np.ndarray]]  # -> pixels [h, w, 3] and stuff [h, w], uint8
    stuff: int  # number of classes of stuff


def stream(name: str, split: str, ingredients: Ingredients, count: int, side: int) -> Stream:
    """Streams painted scenes.

    Args:
      name: the data set.
      split: 'train' or 'test'.
      ingredients: of the split.
      count: number of scenes.
      side: side at which they are painted.
    """
    parts = objects.shapes(KNOWN[name], side)
    if split == 'test':
        parts |= {f'{task}.truth': ((TRUTH_BYTES,), np.uint8) for task in PARTS}
        parts |= {f'{task}.segments': ((side, side), np.uint8) for task in ('instances', 'panoptic')}

    def chunks() -> Iterator[Chunk]:
        for start in range(0, count, CHUNK):
            rows = range(start, min(start + CHUNK, count))
            painted = [paint(draw(name, split, row, ingredients), ingredients, side) for row in rows]
            images, labels, targets = zip(*painted, strict=True)
            stacked = (np.stack([of_image[key] for of_image in targets]) for key in (*TASKS, *parts))
            yield np.stack(images), np.array(labels, np.int32), *stacked

    return Stream(count, (side, side, 3), chunks, TASKS, parts=parts)


def draw(name: str, split: str, row: int, ingredients: Ingredients) -> Scene:
    """Draws the recipe of a scene.

    Args:
      name: the data set.
      split: 'train' or 'test'.
      row: number of the scene in the split.
      ingredients: of the split.
    """
    generator = rng.host(SEED, name, split, row)
    ground = ingredients.draw_ground(generator)
    pixels = maps.nearest(ingredients.ground(ground)[0], SIDE, SIDE)
    low, high = SPRITE_SIDES
    count = generator.integers(SPRITES[0], SPRITES[1], endpoint=True)
    images = generator.integers(len(ingredients.sprites), size=count)
    sprites: list[Sprite] = []
    for image, side in zip(images, np.sort(generator.integers(low, high, count, endpoint=True)), strict=True):
        places = generator.integers(0, SIDE - side, (PLACES, 2), endpoint=True)
        colors = generator.integers(0, 256, (COLORS, 3))
        top, left = min(places, key=lambda place: max(0, _overlap(place, side, sprites) - MOST_OVERLAP))
        mean = pixels[top : top + side, left : left + side].sum(axis=(0, 1), dtype=np.int64) // side**2
        others = [mean, *(sprite.color for sprite in sprites)]
        contrast = np.abs(colors[:, None] - np.array(others)).sum(axis=2).min(axis=1)
        color = colors[np.minimum(contrast, CONTRAST).argmax()]
        sprites.append(Sprite(int(image), int(top), int(left), int(side), tuple(color.tolist())))
    return Scene(ground, tuple(sprites))


def _overlap(place: np.ndarray, side: int, sprites: list[Sprite]) -> float:
    """Returns the largest overlap of a box of `side` at `place` with another, as a share of the smaller of the two."""
    top, left = place.tolist()
    most = 0.0
    for other in sprites:
        height = min(top + side, other.top + other.side) - max(top, other.top)
        width = min(left + side, other.left + other.side) - max(left, other.left)
        most = max(most, max(0, height) * max(0, width) / min(side, other.side) ** 2)
    return most


def paint(scene: Scene, ingredients: Ingredients, side: int) -> tuple[np.ndarray, int, dict[str, np.ndarray]]:
    """Paints a scene.

    Target maps:

      semseg: 1 + the digit; 0 on the background.
      parts: on digits of PART_CLASSES, the quarter of the sprite's height, 1 at the top to 4; 0 elsewhere.
      saliency: the largest visible sprite.
      edges: borders between sprites, and to the background.
      depth: nearness, a sprite's side over the largest possible one, as for objects of one size; 0 on the background.
      stuff: what the background shows; no truth where a sprite covers it.
      keypoints: the highest and lowest point of every sprite, in the middle of its run of pixels, unless another sprite
        covers it.

    Objects are the sprites of which a pixel is visible, the farthest first:

      instances: class 1 + the digit; box and mask of the visible pixels.
      panoptic: the same, and what the background shows.
      persons: the joints of `_joints`, hidden where another sprite covers them.

    Args:
      scene: the recipe.
      ingredients: of the scene's split.
      side: side to paint at; positions and sides of sprites are scaled to it and rounded down.

    Returns:
      The image [side, side, 3] uint8; the class of the sprite with the most visible pixels, the nearest if several are
      equal; and the target maps [side, side] uint8 by task, and the parts of `data.objects` by 'TASK.PART'.
    """
    pixels, stuff = ingredients.ground(scene.ground)
    image = maps.smooth(pixels, side, side).astype(np.int64)
    owner = np.full((side, side), -1)  # index of the sprite that a pixel belongs to
    part = np.zeros((side, side), np.uint8)  # of its sprite, from top to bottom
    joints = {}
    for number, sprite in enumerate(scene.sprites):
        top, left, length = (value * side // SIDE for value in (sprite.top, sprite.left, sprite.side))
        box = slice(top, top + length), slice(left, left + length)
        level = maps.smooth(ingredients.sprites[sprite.image], length, length).astype(np.int64)
        cover = np.clip(level - (STROKE - SOFTNESS), 0, 2 * SOFTNESS)[..., None]
        blend = cover * np.array(sprite.color) + (2 * SOFTNESS - cover) * image[box]
        image[box] = (blend + SOFTNESS) // (2 * SOFTNESS)
        stroke = level >= STROKE
        rows = np.flatnonzero(stroke.any(axis=1))
        if not len(rows):
            continue  # too faint at this side
        owner[box][stroke] = number
        height = rows[-1] + 1 - rows[0]
        part[box] = np.where(stroke, 1 + (np.arange(length)[:, None] - rows[0]) * QUARTERS // height, part[box])
        joints[number] = _joints(stroke) + (top, left)
    classes = ingredients.labels[[sprite.image for sprite in scene.sprites]]
    visible = np.bincount(owner[owner >= 0], minlength=len(classes))
    largest = len(classes) - 1 - int(visible[::-1].argmax())
    semseg, has_parts, depth = np.zeros((3, len(classes) + 1), np.uint8)  # index -1: the background
    semseg[:-1] = 1 + classes
    has_parts[:-1] = np.isin(classes, PART_CLASSES)
    depth[:-1] = [sprite.side * NEAREST // SPRITE_SIDES[1] for sprite in scene.sprites]
    keypoints = np.zeros(owner.shape, np.uint8)
    for number, points in joints.items():
        for kind, (row, column) in zip((TOP, BOTTOM), points, strict=False):
            if owner[row, column] == number:
                keypoints[row, column] = kind
    stuff = np.where(owner >= 0, IGNORED, maps.nearest(stuff, side, side)).astype(np.uint8)
    targets = {
        'semseg': semseg[owner],
        'parts': has_parts[owner] * part,
        'saliency': (owner == largest).astype(np.uint8),
        'edges': maps.borders(owner).astype(np.uint8),
        'depth': depth[owner],
        'stuff': stuff,
        'keypoints': keypoints,
    }
    semantic = np.where(owner >= 0, ingredients.stuff, stuff).astype(np.uint8)
    return image.astype(np.uint8), int(classes[largest]), targets | _objects(owner, joints, classes, semantic)


def _joints(stroke: np.ndarray) -> np.ndarray:
    """Returns row and column of the joints of a digit, [5, 2].

    They are its highest, lowest, leftmost and rightmost pixel, the middle one of several, and the first of those that
    are nearest to the middle of its box.
    """
    pixels = np.argwhere(stroke)  # row by row
    low, high = pixels.min(axis=0), pixels.max(axis=0)
    ends = [pixels[pixels[:, axis] == end[axis]] for axis in (0, 1) for end in (low, high)]
    central = pixels[((2 * pixels - low - high) ** 2).sum(axis=1).argmin()]
    return np.stack([*(run[len(run) // 2] for run in ends), central])


def _objects(
    owner: np.ndarray, joints: dict[int, np.ndarray], classes: np.ndarray, semantic: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the parts of tasks of objects, as `data.objects`.

    Args:
      owner: [S, S], number of the sprite that each pixel belongs to, -1 for none.
      joints: row and column [J, 2] of those of each sprite.
      classes: [sprites], 0..9.
      semantic: [S, S] uint8, of panoptic segmentation.
    """
    segments, things, people, boxes, masks = np.zeros(owner.shape, np.uint8), [], [], [], []
    points, seen = [], []
    for number, places in joints.items():
        pixels = owner == number
        rows, columns = np.nonzero(pixels)
        if not len(rows):
            continue
        (left, right), (top, bottom) = ((int(x.min()), int(x.max()) + 1) for x in (columns, rows))
        box = left, top, right, bottom
        boxes.append(box)
        masks.append(objects.on_grid(pixels, box, GRID))
        points.append(places[:, ::-1])
        seen.append(1 + (owner[tuple(places.T)] == number))
        common = {'iscrowd': 0, 'area': len(rows), 'bbox': [left, top, right - left, bottom - top]}
        things.append({'category_id': int(classes[number]) + 1, **common})
        keypoints = np.append(points[-1], seen[-1][:, None], axis=1).ravel().tolist()
        people.append({'category_id': 1, **common, 'keypoints': keypoints, 'num_keypoints': len(places)})
        segments[pixels] = len(things)
    labels = [thing['category_id'] for thing in things]
    padded = functools.partial(objects.padded, count=SPRITES[1])
    shared = {
        'boxes': padded(boxes, shape=(4,), kind=np.float32),
        'labels': padded(labels, shape=(), kind=np.uint8),
        'masks': padded(masks, shape=(GRID, GRID // 8), kind=np.uint8),
    }
    stuff = [int(kind) for kind in np.unique(semantic[(owner < 0) & (semantic != IGNORED)])]
    panoptic = segments.copy()
    for number, kind in enumerate(stuff, len(things) + 1):
        panoptic[(owner < 0) & (semantic == kind)] = number
    amorphous = [{'category_id': 1 + DIGITS + kind, 'iscrowd': 0} for kind in stuff]
    tasks = {
        'instances': shared | {'truth': _text(things), 'segments': segments},
        'panoptic': shared | {'semantic': semantic, 'truth': _text(things + amorphous), 'segments': panoptic},
        'persons': {
            'joints': padded(points, shape=(JOINTS, 2), kind=np.float32),
            'visible': padded(seen, shape=(JOINTS,), kind=np.uint8),
            'known': np.ones(owner.shape, np.uint8),
            'truth': _text(people),
        },
    }
    return {f'{task}.{part}': array for task, parts in tasks.items() for part, array in parts.items()}


def _text(annotations: list[dict]) -> np.ndarray:
    return truth.padded([truth.encode(annotations)], TRUTH_BYTES)[0]


# --- scenes of MNIST's digits on CIFAR-10's photographs, both as prepared for tensorflow-datasets
#
# 10,000 scenes for training, made from the training images of both sets, and 2,000 for testing, made from their test
# images. What the background shows (task 'stuff') is the class of the photograph.

MNIST_SCENES = 'mnist_scenes'
MNIST_COUNTS = {'train': 10_000, 'test': 2_000}
MARGIN = 2  # cut from every side of a digit's 28 × 28 pixels; loses 0.2 % of the strokes


def find_mnist_scenes(options: ConfigDict) -> Source:
    """Finds MNIST and CIFAR-10, which are decoded and cached, too, and makes scenes of them.

    `image_size` is the side at which the scenes are painted, 0 for 48. Errors are those of `tfds_source.find`.
    """
    side = options.image_size or SIDE
    try:
        digits, photographs = (tfds_source.find(name, options.data_dir, 0) for name in ('mnist', 'cifar10'))
    except UserError as error:
        raise UserError(f"data set '{MNIST_SCENES}' is made of 'mnist' and 'cifar10': {error}") from error
    digest = hashlib.sha256(repr((VERSION, MNIST_COUNTS, digits.key, photographs.key)).encode()).hexdigest()[:12]

    def open_streams() -> tuple[Stream, Stream]:
        sets = [cache.fetch(source, options.cache_dir)[0] for source in (digits, photographs)]
        train, test = (
            stream(MNIST_SCENES, split, mnist_ingredients(split, *sets), count, side)
            for split, count in MNIST_COUNTS.items()
        )
        return train, test

    return Source(MNIST_SCENES, f'{MNIST_SCENES}-{side}px-{digest}', 10, open_streams, KNOWN[MNIST_SCENES].outputs)


def mnist_ingredients(split: str, digits: dict[str, np.ndarray], photographs: dict[str, np.ndarray]) -> Ingredients:
    """Returns the digits and backgrounds of a split; a background is (row,).

    Args:
      split: 'train' or 'test'.
      digits: arrays of MNIST.
      photographs: arrays of CIFAR-10.
    """
    middle = slice(MARGIN, -MARGIN)
    images, labels = photographs[f'{split}_images'], photographs[f'{split}_labels']
    return Ingredients(
        digits[f'{split}_images'][:, middle, middle, 0],
        digits[f'{split}_labels'],
        lambda generator: (int(generator.integers(len(images))),),
        lambda place: (images[place[0]], np.full(images.shape[1:3], labels[place[0]], np.uint8)),
        KNOWN[MNIST_SCENES].outputs['stuff'],
    )
