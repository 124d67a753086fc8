"""Entry point for all data sets: `load` finds one by name and decodes it or takes it from the cache."""

from __future__ import annotations

from collections.abc import Callable

from ml_collections import ConfigDict

from semisfl_jax.core.errors import UserError
from semisfl_jax.data import (
    cache,
    cinic10,
    dataset,
    digit_scenes,
    digits,
    fake,
    image100,
    mnist_scenes,
    own_folder,
    pad,
    pascal_context,
    tfds_dense,
    tfds_source,
)
from semisfl_jax.data.dataset import Outline
from semisfl_jax.data.decode import Source

ALIASES = {'svhn': 'svhn_cropped'}
# key -> sets that read it
OWNERS = {
    'image_folder': (own_folder.NAME, image100.NAME, cinic10.NAME, pascal_context.NAME),
    'class_list': (image100.NAME,),
}
# Sets that are neither prepared nor in a folder: name -> function (side to resize to, 0 to keep) -> Dataset
READERS: dict[str, Callable[[int], dataset.Dataset]] = {'digits': digits.load, digit_scenes.NAME: digit_scenes.load}
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
        return pad.padded(fake.make(name, options.fake_size, options.image_size), options.pad_to)
    if options.fake_size:
        raise UserError('config.data.fake_size is for synthetic images: add --config.data.fake=True, or leave it at 0')
    if name in READERS:
        return pad.padded(dataset.check(name, READERS[name](options.image_size)), options.pad_to)
    source = _find(name, options)
    arrays, checksum = cache.fetch(source, options.cache_dir)
    loaded = dataset.make(name, arrays, source.num_classes, digest=checksum, outputs=source.outputs)
    return pad.padded(loaded, options.pad_to, source.key, options.cache_dir)


def _find(name: str, options: ConfigDict) -> Source:
    """The data set `name`, none of READERS, in its prepared form or its folder."""
    if name == own_folder.NAME:
        return own_folder.find(options.image_folder, options.image_size)
    if name == image100.NAME:
        return image100.find(options.image_folder, options.class_list, options.data_dir, options.image_size)
    if name == cinic10.NAME:
        return cinic10.find(options.image_folder, options.data_dir, options.image_size)
    if name == mnist_scenes.NAME:
        return mnist_scenes.find(options.data_dir, options.image_size, options.cache_dir)
    if name == pascal_context.NAME:
        return pascal_context.find(options.image_folder, options.image_size)
    if name in tfds_dense.SETS:
        return tfds_dense.find(name, options.data_dir, options.image_size)
    folders = own_folder.NAME, image100.NAME, cinic10.NAME, mnist_scenes.NAME, pascal_context.NAME
    own_names = (*READERS, *ALIASES, *folders)
    return tfds_source.find(name, options.data_dir, options.image_size, own_names=own_names)


def outline(options: ConfigDict) -> Outline | None:
    """The shapes of the data set that `config.data` asks for, before loading any of it; None if they are unknown."""
    name = ALIASES.get(options.name, options.name)
    custom = READERS.get(name) is not _BUNDLED.get(name)
    if name not in fake.SHAPES or (custom and not options.fake):
        return None
    true = fake.SHAPES[name]
    image = pad.shape(resized(true.image, options), options.pad_to)
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
    pad.check(resized(fake.SHAPES[ALIASES.get(options.name, options.name)].image, options), options.pad_to)
    return known.image, known.classes


def resized(natural: tuple[int, int, int], options: ConfigDict) -> tuple[int, int, int]:
    """Shape of images (H, W, C) after the resizing that `config.data` asks for."""
    side = options.image_size
    return (side, side, natural[2]) if side else natural
