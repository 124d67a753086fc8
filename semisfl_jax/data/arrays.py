"""Data sets that a program has in memory: arrays, or a data set of Hugging Face that it has loaded."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from semisfl_jax.base.errors import UserError, describe, shorten, use_one_of
from semisfl_jax.data import dataset
from semisfl_jax.data.dataset import SPLITS, Dataset
from semisfl_jax.data.decode import to_pixels

NAME = 'arrays'  # of these data sets, as `config.data.name`
IN_NO_FILE = 'given in Python, and no file has them: sfl.train(config, folder, dataset=…) takes them again'
_GRAY = ('1', 'L', 'I', 'I;16')  # modes of Pillow


def from_arrays(
    train_images: Any,
    train_labels: Any,
    test_images: Any,
    test_labels: Any,
    classes: Sequence[str] | None = None,
    client_ids: Any = None,
) -> Dataset:
    """Makes a data set of arrays, for `sfl.train(config, folder, dataset=…)` and `sfl.build(config, dataset=…)`.

    Images of uint8 are not copied, and may be memory maps. Their mean and deviation, for normalization, are measured.

    Args:
      train_images: [n, H, W] or [n, H, W, C], uint8 from 0 to 255, or floats in [0, 1], which are rounded to uint8.
      train_labels: [n], numbers of classes, -1 where nobody knows the class; or names of classes.
      test_images: [m, ...], like `train_images`.
      test_labels: [m], like `train_labels`, all known.
      classes: [K] names of the classes in the order of their numbers; None: names are sorted, numbers have no names.
      client_ids: [n] numbers or names of clients, such as FEMNIST's writers. Each client then has its own images, but
        for those that the server takes; client n is the n-th of the sorted ids. None: `federation.partition` splits.

    Raises:
      UserError: an array has a wrong shape, type, length or value, or the classes do not match.
    """
    images = {'train_images': _pixels('train_images', train_images), 'test_images': _pixels('test_images', test_images)}
    labels = {'train_labels': _column('train_labels', train_labels), 'test_labels': _column('test_labels', test_labels)}
    names, named = tuple(map(str, classes or ())), [column.dtype.kind == 'U' for column in labels.values()]
    if named[0] != named[1]:
        raise UserError('one of train_labels and test_labels has names, the other numbers; use the same kind for both')
    if named[0]:
        names = names or tuple(sorted({*labels['train_labels'].tolist()}))
        labels = {key: _number(key, column, names) for key, column in labels.items()}
    seen, tested = map(np.unique, labels.values())
    count = len(names) if names else int(seen.max(initial=-1)) + 1
    if names and len({*names}) < count:
        raise UserError(f'classes {names} repeats a name; give every class its own')
    if not names and len(seen[seen >= 0]) < count:
        raise UserError(
            f'train_labels has {len(seen[seen >= 0])} classes with numbers up to {count - 1}; number them 0, 1, 2, … '
            'without a gap (numpy.unique(labels, return_inverse=True)), or name all by classes'
        )
    if len(unseen := np.setdiff1d(tested, seen)):
        name = repr(names[unseen[0]]) if names and 0 <= unseen[0] < count else unseen[0]
        raise UserError(f'test_labels has class {name}, which train_labels lacks; add images there, or remove these')
    owners = {}
    if client_ids is not None:
        owners['client_ids'] = np.unique(_column('client_ids', client_ids), return_inverse=True)[1].astype(np.int32)
    labels = {key: column.astype(np.int32) for key, column in labels.items()}
    return dataset.make(NAME, {**images, **labels, **owners}, count, class_names=names)


def from_hugging_face(
    splits: Mapping[str, Any], image: str = 'image', label: str = 'label', client: str | None = None
) -> Dataset:
    """Makes a data set of the splits 'train' and 'test' of a loaded `datasets.DatasetDict`.

    Args:
      splits: the splits; those with other names go here as {'train': …, 'test': …}.
      image: column of images of one size: of feature `Image`, or arrays like those of `from_arrays`.
      label: column of labels; a feature `ClassLabel` names the classes.
      client: column of the ids of clients, or None.

    Raises:
      UserError: a split or a column is missing, or `from_arrays` refuses what is there.
    """
    has = ', '.join(map(repr, splits)) if isinstance(splits, Mapping) else describe(splits)
    if not isinstance(splits, Mapping) or any(split not in splits for split in SPLITS):
        raise UserError(f"the data set is {has}; give the splits {{'train': …, 'test': …}}")
    for split, name in [*((split, name) for split in SPLITS for name in (image, label)), ('train', client)]:
        if name is not None and name not in (known := splits[split].column_names):
            raise UserError(f"split '{split}' has no column '{name}'; {use_one_of(name, known)}")
    train, test = ((_stack(splits[split][image]), list(splits[split][label])) for split in SPLITS)
    names = getattr(splits['train'].features[label], 'names', None)
    return from_arrays(*train, *test, classes=names, client_ids=client and list(splits['train'][client]))


def _stack(images: Iterable[Any]) -> np.ndarray:
    """Stacks images, Pillow's or arrays, of one size; pictures are in gray if all are, else in color."""
    arrays = [
        to_pixels(each, 0, 1 if each.mode in _GRAY else 3) if isinstance(each, Image.Image) else np.asarray(each)
        for each in images
    ]
    if {array.shape[-1] for array in arrays} == {1, 3}:
        arrays = [np.broadcast_to(array, (*array.shape[:-1], 3)) for array in arrays]
    if len(shapes := sorted({array.shape for array in arrays})) > 1:
        raise UserError(f'the images differ in size, such as {shapes[0]} and {shapes[-1]}; resize them first')
    return np.stack(arrays) if arrays else np.empty(0, np.uint8)


def _pixels(key: str, images: Any) -> np.ndarray:
    """Returns images [n, H, W, C], of uint8 if they are floats; an array of uint8 stays as it is."""
    images = np.asanyarray(images)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        raise UserError(f'{key} is {describe(images)}, channels first; use numpy.moveaxis(images, 1, -1)')
    if images.dtype.kind != 'f':
        return images
    pixels, row = np.empty(images.shape, np.uint8), 0
    for block in dataset.blocks(images):
        lowest, highest = block.min(), block.max()
        if not (lowest >= 0 and highest <= 1):  # also if there is a NaN
            raise UserError(f'{key} is {images.dtype} from {lowest} to {highest}; use floats in [0, 1], or uint8')
        pixels[row : row + len(block)] = np.rint(block * np.float64(255))
        row += len(block)
    return pixels


def _column(key: str, values: Any) -> np.ndarray:
    """Returns numbers or names [n], integers or strings."""
    column = np.asarray(values)
    if column.dtype.kind in 'OT' and all(isinstance(value, str) for value in column.flat):
        column = column.astype(str)
    if column.ndim != 1 or column.dtype.kind not in 'iuU':
        raise UserError(f'{key} is {describe(column)}; use integers or strings [n]')
    return column


def _number(key: str, labels: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Numbers the names of classes [n] by their places among `names`."""
    places = {name: place for place, name in enumerate(names)}
    if unknown := sorted({*labels.tolist()} - places.keys()):
        raise UserError(f'{key} has {unknown[0]!r}, which is not one of the classes {shorten(", ".join(names))}')
    return np.array([places[name] for name in labels.tolist()])
