"""Entry point for all data sets: `load` finds one by name, decodes it or takes it from the cache, and pads it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.base.errors import UserError
from semisfl_jax.data import arrays as arrays_lib
from semisfl_jax.data import bundled, cache, coco, dataset, fake, folder, pascal_context, scenes, tfds_source
from semisfl_jax.data.catalog import IMAGENET, KNOWN
from semisfl_jax.data.dataset import Dataset, Outline, checksum
from semisfl_jax.data.decode import Source
from semisfl_jax.tasks import IGNORED, PARTS

# key -> sets that read it
OWNERS = {
    'image_folder': (folder.FOLDER, folder.IMAGE100, folder.CINIC10, pascal_context.NAME, coco.NAME),
    'class_list': (folder.IMAGE100,),
}
# Sets that are neither prepared nor in a folder: name -> function (side to resize to, 0 to keep) -> Dataset
READERS: dict[str, Callable[[int], Dataset]] = {
    'digits': bundled.read_digits,
    bundled.DIGIT_SCENES: bundled.make_digit_scenes,
}
_BUNDLED = dict(READERS)  # without a user's readers
# Sets that are not, or not only, image-classification sets of TFDS: name -> function (`config.data`) -> Source
_FINDERS: dict[str, Callable[[ConfigDict], Source]] = {
    folder.FOLDER: folder.find_own,
    folder.IMAGE100: folder.find_image100,
    folder.CINIC10: folder.find_cinic10,
    scenes.MNIST_SCENES: scenes.find_mnist_scenes,
    pascal_context.NAME: pascal_context.find,
    coco.NAME: coco.find,
    **{name: functools.partial(tfds_source.find_dense, name) for name in tfds_source.SETS},
}


def load(options: ConfigDict, given: Dataset | None = None) -> Dataset:
    """Loads and decodes the data set that `config.data` asks for, or takes the one that is given.

    Raises:
      UserError: the data set is unknown, its data are unprepared or unsuitable, or options are incompatible.
    """
    name = options.name
    if name.lower() in KNOWN and name not in (*KNOWN, *READERS):  # TFDS would accept it as the same set
        raise UserError(f"unknown data set '{name}' in config.data.name; write '{name.lower()}'")
    for key, owners in OWNERS.items():
        if options[key] and name not in owners:
            of = ' or '.join(map(repr, owners))
            raise UserError(f"config.data.{key} belongs to data set {of}, not to '{options.name}': leave it empty")
    if options.fake and not given:
        return _finished(fake.make(name, options.fake_size, options.image_size), options)
    if options.fake_size and not given:
        raise UserError('config.data.fake_size is for synthetic images: add --config.data.fake=True, or leave it at 0')
    if given or name in READERS:
        loaded, side = dataset.check(name, given or READERS[name](options.image_size)), options.image_size
        if side and loaded.train_images.shape[1:3] != (side, side):
            has = ' x '.join(map(str, loaded.train_images.shape[1:3]))
            raise UserError(f"config.data.image_size={side}, but data set '{name}' has images of {has}; use 0")
    else:
        source = _find(options)
        arrays, digest = cache.fetch(source, options.cache_dir)
        loaded = dataset.make(
            name, arrays, source.num_classes, digest=digest, outputs=source.outputs, class_names=source.class_names
        )
    dataset.warn_of_images(loaded)
    return _finished(loaded, options)


def _finished(loaded: Dataset, options: ConfigDict) -> Dataset:
    """Applies `normalization` and `pad_to`."""
    if options.normalization == 'imagenet':
        if (channels := loaded.train_images.shape[-1]) != 3:
            raise UserError(
                "config.data.normalization='imagenet' (also 'auto' with model.weights) is for three channels, "
                f"but images of '{loaded.name}' have {channels}; use 'data'"
            )
        loaded = dataclasses.replace(loaded, mean=IMAGENET[0], std=IMAGENET[1])
    return pad(loaded, options.pad_to)


def _find(options: ConfigDict) -> Source:
    if options.name in _FINDERS:
        return _FINDERS[options.name](options)
    if options.name == arrays_lib.NAME:
        raise UserError(f"data set '{options.name}' was {arrays_lib.IN_NO_FILE}")
    return tfds_source.find(options.name, options.data_dir, options.image_size)


def checksum_of(options: ConfigDict, given: Dataset | None = None) -> str:
    """Returns the checksum of what `load` returns, from the cache if it has it; raises UserError like `load`."""
    decoded = not (given or options.fake or options.pad_to or options.name in READERS)
    return (decoded and cache.known_checksum(_find(options), options.cache_dir)) or load(options, given).checksum


def outline(options: ConfigDict) -> Outline | None:
    """Returns the shapes of the data set that `config.data` asks for, without loading any of it.

    They are unknown, None, for sets that are not in `catalog.KNOWN` or have a user's reader.

    Raises:
      UserError: `pad_to` is too small, or there is no such `class_list`.
    """
    name = options.name
    custom = READERS.get(name) is not _BUNDLED.get(name)
    if name not in KNOWN or (custom and not options.fake):
        return None
    true = KNOWN[name]
    has_list = options.class_list and not options.fake
    classes = len(folder.read_classes(options.class_list)) if has_list else true.classes
    side = options.image_size
    unpadded = (side, side, true.image[2]) if side else true.image
    image = padded_shape(unpadded, options.pad_to)
    objects = true.objects if image == unpadded else {}  # as `pad`
    outputs = {task: count for task, count in true.outputs.items() if task in objects or task not in PARTS}
    return Outline(image, classes, outputs, true.original, objects=objects)


def shape_only_dataset(options: ConfigDict) -> Dataset:
    """Returns the data set that `config.data` asks for with every image blank, for programs that are never run.

    Labels cycle through 0 .. K-1, so a split that depends on labels resembles that of the true data but does not equal
    it. A set whose shapes are not known in advance is loaded, with the errors of `load`.
    """
    if (known := outline(options)) is None:
        return load(options)
    labeled, unlabeled, test = fake.counts(options.name, options.fake_size if options.fake else 0)
    half = (0.5,) * known.image[2]
    blank_set = blank(options.name, labeled + unlabeled, test, known, half, half)
    blank_set.train_labels[labeled:] = -1
    return blank_set


_OF_OBJECT = {'labels': 1, 'boxes': (0, 0, 1, 1), 'visible': 2}


def blank(
    name: str, train: int, test: int, outline: Outline, mean: tuple[float, ...], std: tuple[float, ...]
) -> Dataset:
    """Makes a data set whose images are all zeros, stored as one byte, and whose labels cycle through 0 .. K-1.

    Args:
      name: the data set.
      train: number of training images.
      test: number of test images.
      outline: the shapes.
      mean: [C].
      std: [C].
    """
    image, classes, original = outline.image, outline.classes, outline.original

    def targets(task: str, count: int, side: tuple[int, int]) -> Any:
        if task not in PARTS:
            return _filled(count, *side)
        arrays = {part: _filled(count, *shape, kind=kind) for part, (shape, kind) in outline.parts(task).items()}
        for part in arrays.keys() & _OF_OBJECT.keys():  # an image without an object is not trained on
            arrays[part] = np.broadcast_to(np.array(_OF_OBJECT[part], arrays[part].dtype), arrays[part].shape)
        return arrays

    return Dataset(
        name=name,
        train_images=_filled(train, *image),
        train_labels=np.arange(train, dtype=np.int32) % classes,
        test_images=_filled(test, *image),
        test_labels=np.arange(test, dtype=np.int32) % classes,
        num_classes=classes,
        mean=mean,
        std=std,
        fake=True,
        checksum='',
        targets={
            task: dataset.Targets(targets(task, train, image[:2]), targets(task, test, original or image[:2]), number)
            for task, number in outline.outputs.items()
        },
        test_sizes=np.broadcast_to(np.array(original, np.int32), (test, 2)) if original else None,
        class_names=tuple(outline.class_names),
    )


def _filled(*shape: int, kind: Any = np.uint8) -> np.ndarray:
    return np.broadcast_to(np.zeros((), kind), shape)


# --- images padded with zeros to a larger side, so that they fit a model's pooling (`config.data.pad_to`)
#
# Mean and standard deviation remain those of the images without the border; target maps have no truth in it.


def padded_shape(image: tuple[int, int, int], side: int) -> tuple[int, int, int]:
    """Returns the shape (H, W, C) of an image after padding.

    Args:
      image: H, W, C before.
      side: side to pad to, 0 for none.

    Raises:
      UserError: the image is larger.
    """
    height, width, channels = image
    if not side:
        return image
    if max(height, width) > side:
        raise UserError(
            f'config.data.pad_to={side} is smaller than the images, which are {height}x{width}: use '
            f'{max(height, width)} or more, or 0 for none, or a smaller config.data.image_size'
        )
    return side, side, channels


def add_border(images: np.ndarray, side: int, value: int = 0) -> np.ndarray:
    """Centers images in a border; if its width is odd, the bottom and right get the extra pixel.

    Args:
      images: [n, H, W, ...].
      side: side with the border.
      value: of the border.
    """
    missing = [side - length for length in images.shape[1:3]]
    borders = [(0, 0), *((gap // 2, gap - gap // 2) for gap in missing), *[(0, 0)] * (images.ndim - 3)]
    return np.pad(images, borders, constant_values=value)


def pad(loaded: Dataset, side: int) -> Dataset:
    """Pads the images of a data set to `side` x `side`, and its target maps with IGNORED; leaves out tasks of objects.

    Args:
      loaded: the data set.
      side: side to pad to, 0 for none.

    Raises:
      UserError: the images are larger, or scored at their original sizes.
    """
    image = loaded.train_images.shape[1:]
    if padded_shape(image, side) == image:
        return loaded
    if loaded.test_sizes is not None:
        raise UserError(
            f"config.data.pad_to={side}: data set '{loaded.name}' is scored at the original size of its images; use 0, "
            'and config.data.image_size'
        )
    padded = dataclasses.replace(
        loaded,
        train_images=add_border(loaded.train_images, side),
        test_images=add_border(loaded.test_images, side),
        targets={
            task: maps._replace(train=add_border(maps.train, side, IGNORED), test=add_border(maps.test, side, IGNORED))
            for task, maps in loaded.targets.items()
            if task not in PARTS
        },
    )
    return dataclasses.replace(padded, checksum=checksum(loaded.name, padded.arrays))
