"""Data sets in folders of image files, SPLIT/CLASS/*: a user's, CINIC-10 and IMAGE-100 (these two also from TFDS)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import tfds_source
from semisfl_jax.data.decode import CHUNK, Chunk, Source, Stream, decode_chunk

SUFFIXES = ('.jpeg', '.jpg', '.png')


def check_splits(folder: Path, splits: tuple[str, str]) -> None:
    """Makes sure that `folder` has the directories of both splits.

    Raises:
      UserError: it lacks one.
    """
    if not all((folder / split).is_dir() for split in splits):
        needed = ' and '.join(f'{split}/' for split in splits)
        raise UserError(f"config.data.image_folder '{folder}' must have the directories {needed}")


def source(name: str, folder: Path, splits: tuple[str, str], classes: tuple[str, ...], size: int, keys: str) -> Source:
    """Finds a data set in a folder that `check` has passed.

    Args:
      name: canonical name.
      folder: directory with SPLIT/CLASS/*.
      splits: names of the training and the test split.
      classes: names of the classes, in the order of their numbers.
      size: side to resize to.
      keys: the keys to correct if a class is missing, for messages.

    Raises:
      UserError: a class without a directory or without images.
    """
    files = {split: [_files(folder / split / label, keys) for label in classes] for split in splits}
    sizes = [
        (str(path.relative_to(folder)), path.stat().st_size)
        for split_files in files.values()
        for class_files in split_files
        for path in class_files
    ]
    digest = hashlib.sha256(repr((sizes, classes, size)).encode()).hexdigest()[:12]
    train, test = splits
    return Source(
        name,
        f'{name}-folder-{size}px-{digest}',
        len(classes),
        lambda: (_stream(files[train], size), _stream(files[test], size)),
    )


def _files(directory: Path, keys: str) -> list[Path]:
    """The image files of one class, sorted by name."""
    try:
        entries = [entry for entry in os.scandir(directory) if entry.name.lower().endswith(SUFFIXES)]
        names = sorted(entry.name for entry in entries if entry.is_file())
    except OSError as error:
        raise UserError(f"class '{directory.name}' has no readable directory '{directory}': correct {keys}") from error
    if not names:
        raise UserError(f"'{directory}' holds no images ({', '.join(SUFFIXES)}): complete config.data.image_folder")
    return [directory / name for name in names]


def _stream(files: list[list[Path]], size: int) -> Stream:
    paths = [path for class_files in files for path in class_files]
    labels = np.repeat(np.arange(len(files), dtype=np.int32), [len(class_files) for class_files in files])
    shape = (size, size, 3)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(paths), CHUNK):
            chunk = slice(start, start + CHUNK)
            yield decode_chunk(paths[chunk], shape, size), labels[chunk]

    return Stream(len(paths), shape, chunks)


# --- a user's images: train/CLASS/* and test/CLASS/*, of any classes

FOLDER = 'folder'
TEST_NAMES = ('test', 'val', 'valid')  # names of the second split, the first that is there


def find_own(image_folder: str, image_size: int) -> Source:
    """Finds the images.

    Args:
      image_folder: directory with train/CLASS/* and test/CLASS/*, or val/ or valid/ in place of test/. The classes are
        the directories of train/, numbered in the order of their names.
      image_size: side to resize to; photographs seldom are of one size.

    Raises:
      UserError: one of the keys is not set, or the folder is incomplete or has a single class.
    """
    if not image_folder or not image_size:
        key = 'image_size=32, the side to resize to' if image_folder else 'image_folder=DIR, with train/ and test/'
        raise UserError(f"data set '{FOLDER}' needs --config.data.{key}")
    path = Path(image_folder).expanduser()
    splits = 'train', next((name for name in TEST_NAMES if (path / name).is_dir()), TEST_NAMES[0])
    check_splits(path, splits)
    classes = tuple(sorted(each.name for each in (path / 'train').iterdir() if each.is_dir()))
    if len(classes) < 2:
        raise UserError(
            f"config.data.image_folder '{path}' has {len(classes)} classes in train/: give each class a directory, two "
            'at least'
        )
    return source(FOLDER, path, splits, classes, image_size, keys='config.data.image_folder')


# --- CINIC-10: 90,000 images each for training, validation and testing. As in FedDure, validation images are not used

CINIC10 = 'cinic10'
CINIC10_SIDE = 32
CINIC10_CLASSES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')
CINIC10_SPLITS = ('train', 'test')

_NO_CINIC10 = (
    "data set 'cinic10' is neither in config.data.data_dir nor known to tensorflow-datasets: download CINIC-10 (Darlow "
    'et al., CINIC-10 Is Not ImageNet or CIFAR-10, 2018) from the DataShare of the University of Edinburgh '
    '(https://doi.org/10.7488/ds/2448), unpack it and set --config.data.image_folder to the directory that has train/ '
    'and test/, or try synthetic images with --config.data.fake=True'
)


def find_cinic10(image_folder: str, data_dir: str, image_size: int) -> Source:
    """Finds CINIC-10.

    Args:
      image_folder: directory with train/<class>/* and test/<class>/*, '' for a TFDS directory.
      data_dir: TFDS data directory, as in `tfds_source.find`; it may have cinic10/, with splits train and test.
      image_size: side, 0 for 32.

    Raises:
      UserError: the data are absent or incomplete.
    """
    if not image_folder:
        return tfds_source.find(CINIC10, data_dir, image_size, absent=_NO_CINIC10)
    path = Path(image_folder).expanduser()
    check_splits(path, CINIC10_SPLITS)
    return source(
        CINIC10, path, CINIC10_SPLITS, CINIC10_CLASSES, image_size or CINIC10_SIDE, keys='config.data.image_folder'
    )


# --- IMAGE-100: 100 classes of ImageNet at 144 × 144
#
# The paper does not publish its class list, so the user provides one. Images are resized directly to the square,
# without cropping or preserving the aspect ratio, as in the authors' code.

IMAGE100 = 'image100'
IMAGE100_SIDE = 144
IMAGE100_CLASSES = 100
LIST_BYTES = 2**20  # of a class list: ImageNet's 1,000 ids are 10 kB
IMAGE100_SPLITS = ('train', 'val')


def find_image100(image_folder: str, class_list: str, data_dir: str, image_size: int) -> Source:
    """Finds IMAGE-100.

    Args:
      image_folder: directory with train/<class>/* and val/<class>/*, '' for TFDS imagenet2012.
      class_list: text file with one WordNet id per line, in the order of class numbers; '' takes every class of a
        folder with exactly 100.
      data_dir: TFDS data directory, as in `tfds_source.find`.
      image_size: side, 0 for 144.

    Raises:
      UserError: no such folder, class list or class, or no class list where one is required.
    """
    size = image_size or IMAGE100_SIDE
    classes = _read_classes(class_list) if class_list else ()
    if image_folder:
        return _find_folder(Path(image_folder).expanduser(), classes, size)
    if not classes:
        raise UserError(
            "data set 'image100' needs --config.data.class_list, a text file with one WordNet id per line, or "
            '--config.data.image_folder with 100 classes, or --config.data.fake=True'
        )
    return tfds_source.find('imagenet2012', data_dir, size, classes, alias=IMAGE100)


def _read_classes(path: str) -> tuple[str, ...]:
    lines = file_io.read_text(path, 'config.data.class_list', LIST_BYTES).splitlines()
    classes = tuple(line.split()[0] for line in lines if line.strip())
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise UserError(
            f"config.data.class_list '{path}' must name at least two classes, one per line, without repeats"
        )
    return classes


def _find_folder(path: Path, classes: tuple[str, ...], size: int) -> Source:
    check_splits(path, IMAGE100_SPLITS)
    present = sorted(entry.name for entry in (path / IMAGE100_SPLITS[0]).iterdir() if entry.is_dir())
    if not classes and len(present) != IMAGE100_CLASSES:
        raise UserError(
            f"config.data.image_folder '{path}' holds {len(present)} classes, not {IMAGE100_CLASSES}: "
            'choose some with --config.data.class_list'
        )
    classes = classes or tuple(present)
    keys = 'config.data.class_list or config.data.image_folder'
    return source(IMAGE100, path, IMAGE100_SPLITS, classes, size, keys)
