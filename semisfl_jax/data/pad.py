"""Pads images with zeros to a larger side, so that they fit a model's pooling (`config.data.pad_to`).

Mean and standard deviation remain those of the images without the border, and target maps have no truth there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from semisfl_jax.core.errors import UserError
from semisfl_jax.data import cache
from semisfl_jax.data.dataset import SPLITS, Dataset, checksum, targets
from semisfl_jax.data.decode import CHUNK, Chunk, Source, Stream
from semisfl_jax.tasks import IGNORED


def shape(image: tuple[int, int, int], side: int) -> tuple[int, int, int]:
    """Shape (H, W, C) of an image after padding; a side that is already longer stays."""
    height, width, channels = image
    return max(height, side), max(width, side), channels


def check(image: tuple[int, int, int], side: int) -> None:
    """Makes sure that images (H, W, C) fit into `side`, 0 for no padding.

    Raises:
      UserError: they are larger.
    """
    height, width, _ = image
    if side and max(height, width) > side:
        raise UserError(
            f'config.data.pad_to={side} is smaller than the images, which are {height}x{width}: padding only enlarges; '
            f'use {max(height, width)} or more, or 0 for none, or a smaller config.data.image_size'
        )


def around(images: np.ndarray, side: int, value: int = 0) -> np.ndarray:
    """Images [n, H, W, ...] in a border of `value`, equally wide on all sides or one more at the bottom and right."""
    missing = [side - length for length in images.shape[1:3]]
    borders = [(0, 0), *((gap // 2, gap - gap // 2) for gap in missing), *[(0, 0)] * (images.ndim - 3)]
    return np.pad(images, borders, constant_values=value)


def padded(loaded: Dataset, side: int, key: str = '', cache_dir: str = '') -> Dataset:
    """A data set with images of `side` x `side`.

    Args:
      loaded: the data set.
      side: 0 for no padding.
      key: cache entry of `loaded`, to which another one is added for the padded images; '': not cached.
      cache_dir: as in `cache.fetch`.

    Raises:
      UserError: the images are larger.
    """
    image = loaded.train_images.shape[1:]
    check(image, side)
    if shape(image, side) == image:
        return loaded
    if loaded.test_sizes is not None:
        raise UserError(
            f"config.data.pad_to={side}: data set '{loaded.name}' is scored at the original size of its images, to "
            'which predictions are resized without a border; use 0, and config.data.image_size'
        )
    outputs = {task: maps.outputs for task, maps in loaded.targets.items()}
    train_maps = {task: maps.train for task, maps in loaded.targets.items()}
    test_maps = {task: maps.test for task, maps in loaded.targets.items()}
    streams = (
        _stream(loaded.train_images, loaded.train_labels, train_maps, side),
        _stream(loaded.test_images, loaded.test_labels, test_maps, side),
    )
    if key:
        source = Source(loaded.name, f'{key}-padded-{side}px', loaded.num_classes, lambda: streams, outputs)
        arrays, digest = cache.fetch(source, cache_dir)
    else:
        arrays = cache.collect(loaded.name, dict(zip(SPLITS, streams, strict=True)))
        digest = checksum(loaded.name, arrays)
    return dataclasses.replace(
        loaded,
        train_images=arrays['train_images'],
        test_images=arrays['test_images'],
        checksum=digest,
        targets=targets(arrays, outputs),
    )


def _stream(images: np.ndarray, labels: np.ndarray, maps: dict[str, np.ndarray], side: int) -> Stream:
    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(images), CHUNK):
            rows = slice(start, start + CHUNK)
            yield around(images[rows], side), labels[rows], *(around(m[rows], side, IGNORED) for m in maps.values())

    return Stream(len(images), shape(images.shape[1:], side), chunks, tuple(maps))
