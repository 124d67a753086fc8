"""Entry point for all data sets: `load` finds one by name and decodes it or takes it from the cache."""

from __future__ import annotations

from collections.abc import Callable

from semisfl_jax.data import (
    cache,
    dataset,
    digits,
    fake,
    image100,
    tfds_source,
)
from semisfl_jax.data.dataset import Outline
from semisfl_jax.errors import UserError

ALIASES = {'svhn': 'svhn_cropped'}
# Sets other than IMAGE-100 and those of TFDS: name -> function (side to resize to, 0 to keep) -> Dataset
READERS: dict[str, Callable[[int], dataset.Dataset]] = {'digits': digits.load}


def load(options) -> dataset.Dataset:
    """Loads the data set that a configuration asks for.

    Args:
      options: `config.data`, the keys of configs/default.py.

    Returns:
      The decoded data set.

    Raises:
      UserError: unknown data set, unprepared or unsuitable data, or incompatible options.
    """
    name = ALIASES.get(options.name, options.name)
    if options.image_size < 0:
        raise UserError(
            f'config.data.image_size is {options.image_size}: use a side in pixels, or 0 to keep the images'
        )
    for key in ('image_folder', 'class_list'):
        if options[key] and name != image100.NAME:
            raise UserError(
                f"config.data.{key} belongs to data set 'image100', not to '{options.name}': leave it empty"
            )
    if options.fake:
        return fake.make(name, options.fake_size, options.image_size)
    if options.fake_size:
        raise UserError('config.data.fake_size is for made-up images: add --config.data.fake=True, or leave it at 0')
    if name in READERS:
        return READERS[name](options.image_size)
    if name == image100.NAME:
        source = image100.find(options.image_folder, options.class_list, options.data_dir, options.image_size)
    else:
        own_names = (*READERS, *ALIASES, image100.NAME)
        source = tfds_source.find(name, options.data_dir, options.image_size, own_names=own_names)
    arrays, checksum = cache.fetch(source, options.cache_dir)
    return dataset.make(name, arrays, source.num_classes, digest=checksum)


def outline(options) -> Outline | None:
    """The outline of the data set that `config.data` asks for, before loading any of it.

    Counts are those of made-up or bundled sets, and 0 where prepared data may hold fewer images. None for sets of
    unknown shape.
    """
    name = ALIASES.get(options.name, options.name)
    custom = name in READERS and READERS[name] is not digits.load
    if name not in fake.SHAPES or (custom and not options.fake):
        return None
    true, side = fake.SHAPES[name], options.image_size
    image = (side, side, true.image[2]) if side else true.image
    labeled, unlabeled, test = fake.counts(name, options.fake_size) if options.fake else (true.train, 0, true.test)
    if not options.fake and name not in READERS:
        labeled = unlabeled = test = 0
    return Outline(image, true.classes, labeled + unlabeled, test, in_memory=options.fake or name in READERS)


def shape(options) -> tuple[tuple[int, int, int], int]:
    """Image shape (H, W, C) and number of classes of the data set that `config.data` asks for.

    Known without data for the sets in `fake.SHAPES`; any other is loaded.

    Raises:
      UserError: as `load`.
    """
    name = ALIASES.get(options.name, options.name)
    if name not in fake.SHAPES:
        loaded = load(options)
        return loaded.train_images.shape[1:], loaded.num_classes
    true = fake.SHAPES[name]
    side = options.image_size
    return (side, side, true.image[2]) if side else true.image, true.classes
