"""Scenes of MNIST's digits on CIFAR-10's photographs, both as prepared for tensorflow-datasets.

10,000 scenes for training, of the training images of both sets, and 2,000 for testing, of their test images. What the
background shows (task 'stuff') is the class of the photograph.
"""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np

from semisfl_jax.core.errors import UserError
from semisfl_jax.data import cache, scenes, tfds_source
from semisfl_jax.data.decode import Source, Stream

NAME = 'mnist_scenes'
COUNTS = {'train': 10_000, 'test': 2_000}
MARGIN = 2  # cut from every side of a digit's 28 × 28 pixels, with 0.2 % of the strokes
STUFF = 10  # classes of CIFAR-10


def find(data_dir: str, image_size: int, cache_dir: str) -> Source:
    """Finds the two sets.

    Args:
      data_dir: TFDS data directory, as in `tfds_source.find`.
      image_size: side at which the scenes are painted, 0 for 48.
      cache_dir: as in `cache.fetch`; the two sets are decoded there, too.

    Raises:
      UserError: one of the sets is not prepared, or the side is too small.
    """
    side = scenes.check_side(NAME, image_size)
    try:
        digits, photographs = (tfds_source.find(name, data_dir, 0) for name in ('mnist', 'cifar10'))
    except UserError as error:
        raise UserError(f"data set '{NAME}' is made of 'mnist' and 'cifar10': {error}") from error
    digest = hashlib.sha256(repr((scenes.VERSION, COUNTS, digits.key, photographs.key)).encode()).hexdigest()[:12]

    def open_streams() -> tuple[Stream, Stream]:
        sets = [cache.fetch(source, cache_dir)[0] for source in (digits, photographs)]
        train, test = (
            scenes.stream(NAME, split, ingredients(split, *sets), count, side) for split, count in COUNTS.items()
        )
        return train, test

    return Source(NAME, f'{NAME}-{side}px-{digest}', 10, open_streams, scenes.outputs(STUFF))


def ingredients(split: str, digits: dict[str, np.ndarray], photographs: dict[str, np.ndarray]) -> scenes.Ingredients:
    """The digits and backgrounds of a split. A background is (row,).

    Args:
      split: 'train' or 'test'.
      digits, photographs: the arrays of the two sets, as from `cache.fetch`.
    """
    middle = slice(MARGIN, -MARGIN)
    images, labels = photographs[f'{split}_images'], photographs[f'{split}_labels']
    return scenes.Ingredients(
        digits[f'{split}_images'][:, middle, middle, 0],
        digits[f'{split}_labels'],
        partial(_draw_ground, len(images)),
        lambda place: (images[place[0]], np.full(images.shape[1:3], labels[place[0]], np.uint8)),
    )


def _draw_ground(count: int, generator: np.random.Generator) -> tuple[int, ...]:
    return (int(generator.integers(count)),)
