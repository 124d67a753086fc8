"""Entry point for all data sets: `load` finds one by name, decodes it or takes it from the cache, and pads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.core.errors import UserError
from semisfl_jax.data import bundled, cache, dataset, fake, folder, pascal_context, scenes, tfds_dense, tfds_source
from semisfl_jax.data.dataset import SPLITS, Dataset, Outline, checksum, targets
from semisfl_jax.data.decode import CHUNK, Chunk, Source, Stream
from semisfl_jax.tasks import IGNORED


def padded_shape(image: tuple[int, int, int], side: int) -> tuple[int, int, int]:
    """Shape (H, W, C) of an image after padding; a side that is already longer stays."""
    height, width, channels = image
    return max(height, side), max(width, side), channels


def check_padding(image: tuple[int, int, int], side: int) -> None:
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


def add_border(images: np.ndarray, side: int, value: int = 0) -> np.ndarray:
    """Images [n, H, W, ...] in a border of `value`, equally wide on all sides or one more at the bottom and right."""
    missing = [side - length for length in images.shape[1:3]]
    borders = [(0, 0), *((gap // 2, gap - gap // 2) for gap in missing), *[(0, 0)] * (images.ndim - 3)]
    return np.pad(images, borders, constant_values=value)


def pad(loaded: Dataset, side: int, key: str = '', cache_dir: str = '') -> Dataset:
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
    check_padding(image, side)
    if padded_shape(image, side) == image:
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
        _padded_stream(loaded.train_images, loaded.train_labels, train_maps, side),
        _padded_stream(loaded.test_images, loaded.test_labels, test_maps, side),
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


def _padded_stream(images: np.ndarray, labels: np.ndarray, maps: dict[str, np.ndarray], side: int) -> Stream:
    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(images), CHUNK):
            rows = slice(start, start + CHUNK)
            yield (
                add_border(images[rows], side),
                labels[rows],
                *(add_border(m[rows], side, IGNORED) for m in maps.values()),
            )

    return Stream(len(images), padded_shape(images.shape[1:], side), chunks, tuple(maps))


ALIASES = {'svhn': 'svhn_cropped'}
# key -> sets that read it
OWNERS = {
    'image_folder': (folder.FOLDER, folder.IMAGE100, folder.CINIC10, pascal_context.NAME),
    'class_list': (folder.IMAGE100,),
}
# Sets that are neither prepared nor in a folder: name -> function (side to resize to, 0 to keep) -> Dataset
READERS: dict[str, Callable[[int], dataset.Dataset]] = {
    'digits': bundled.read_digits,
    bundled.DIGIT_SCENES: bundled.make_digit_scenes,
}
_BUNDLED = dict(READERS)  # without a user's own


def load(options: ConfigDict) -> dataset.Dataset:
    """Loads the data set that a configuration asks for.

    Args:
      options: `config.data`, the keys of configs/default.py.

    Returns:
      The decoded data set.

    Raises:
      UserError: unknown data set, unprepared or unsuitable data, or incompatible options.
    """
    name = ALIASES.get(options.name, options.name)
    for key in ('image_size', 'pad_to'):
        if options[key] < 0:
            raise UserError(f'config.data.{key} is {options[key]}: use a side in pixels, or 0 to keep the images')
    for key, owners in OWNERS.items():
        if options[key] and name not in owners:
            raise UserError(
                f"config.data.{key} belongs to data set {' or '.join(map(repr, owners))}, not to '{options.name}': "
                'leave it empty'
            )
    if options.fake:
        return pad(fake.make(name, options.fake_size, options.image_size), options.pad_to)
    if options.fake_size:
        raise UserError('config.data.fake_size is for synthetic images: add --config.data.fake=True, or leave it at 0')
    if name in READERS:
        return pad(dataset.check(name, READERS[name](options.image_size)), options.pad_to)
    source = _find(name, options)
    arrays, checksum = cache.fetch(source, options.cache_dir)
    loaded = dataset.make(name, arrays, source.num_classes, digest=checksum, outputs=source.outputs)
    return pad(loaded, options.pad_to, source.key, options.cache_dir)


def _find(name: str, options: ConfigDict) -> Source:
    """The data set `name`, none of READERS, in its prepared form or its folder."""
    if name == folder.FOLDER:
        return folder.find_own(options.image_folder, options.image_size)
    if name == folder.IMAGE100:
        return folder.find_image100(options.image_folder, options.class_list, options.data_dir, options.image_size)
    if name == folder.CINIC10:
        return folder.find_cinic10(options.image_folder, options.data_dir, options.image_size)
    if name == scenes.MNIST_SCENES:
        return scenes.find_mnist_scenes(options.data_dir, options.image_size, options.cache_dir)
    if name == pascal_context.NAME:
        return pascal_context.find(options.image_folder, options.image_size)
    if name in tfds_dense.SETS:
        return tfds_dense.find(name, options.data_dir, options.image_size)
    folders = folder.FOLDER, folder.IMAGE100, folder.CINIC10, scenes.MNIST_SCENES, pascal_context.NAME
    own_names = (*READERS, *ALIASES, *folders)
    return tfds_source.find(name, options.data_dir, options.image_size, own_names=own_names)


def outline(options: ConfigDict) -> Outline | None:
    """The shapes of the data set that `config.data` asks for, before loading any of it; None if they are unknown."""
    name = ALIASES.get(options.name, options.name)
    custom = READERS.get(name) is not _BUNDLED.get(name)
    if name not in fake.SHAPES or (custom and not options.fake):
        return None
    true = fake.SHAPES[name]
    image = padded_shape(resized(true.image, options), options.pad_to)
    return Outline(image, true.classes, true.outputs, true.original)


def shape(options: ConfigDict) -> tuple[tuple[int, int, int], int]:
    """Image shape (H, W, C) and number of classes of the data set that `config.data` asks for.

    Known without data for the sets in `fake.SHAPES` with a reader of this package; any other is loaded.

    Raises:
      UserError: as `load`.
    """
    known = outline(options)
    if known is None:
        loaded = load(options)
        return loaded.train_images.shape[1:], loaded.num_classes
    check_padding(resized(fake.SHAPES[ALIASES.get(options.name, options.name)].image, options), options.pad_to)
    return known.image, known.classes


def resized(natural: tuple[int, int, int], options: ConfigDict) -> tuple[int, int, int]:
    """Shape of images (H, W, C) after the resizing that `config.data` asks for."""
    side = options.image_size
    return (side, side, natural[2]) if side else natural
