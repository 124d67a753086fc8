"""Data sets in folders of image files, SPLIT/CLASS/*: a user's, CINIC-10 and IMAGE-100 (these two also from TFDS)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import tfds_source
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.data.decode import CHUNK, Chunk, Source, Stream, decode_chunk

SUFFIXES = ('.jpeg', '.jpg', '.png')
FOLDER, CINIC10, IMAGE100 = 'folder', 'cinic10', 'image100'  # names of data sets
CINIC10_CLASSES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')
LIST_BYTES = 2**20  # of a class list: ImageNet's 1,000 ids are 10 kB


def find_own(options: ConfigDict) -> Source:
    """Finds a user's images in train/CLASS/* and test/CLASS/* (or val/ or valid/), classes in the order of their names,
    and those of unknown class in unlabeled/*, if there is one; UserError: one of the keys is not set, or the folder is
    incomplete or has a single class.
    """
    if not options.image_folder or not options.image_size:
        key = (
            'image_size=32, the side to resize to'
            if options.image_folder
            else 'image_folder=DIR, with train/ and test/'
        )
        raise UserError(f"data set '{FOLDER}' needs --config.data.{key}")
    folder = file_io.expand_home(options.image_folder, 'config.data.image_folder')
    test = next((name for name in ('test', 'val', 'valid') if (folder / name).is_dir()), 'test')
    classes = _classes(folder, ('train', test))
    if len(classes) < 2:
        raise UserError(f"config.data.image_folder '{folder}' has {len(classes)} classes in train/: use two or more")
    if unknown := sorted({*_classes(folder, (test, 'train'))} - {*classes}):
        raise UserError(
            f"config.data.image_folder '{folder}': {test}/ has the class '{unknown[0]}', train/ does not; add images "
            'there, or remove it'
        )
    unlabeled = _files(folder / 'unlabeled') if (folder / 'unlabeled').is_dir() else []
    return source(FOLDER, folder, ('train', test), classes, options.image_size, unlabeled)


def find_cinic10(options: ConfigDict) -> Source:
    """Finds CINIC-10, of side 32: 90,000 images each for training, validation (not used, as in FedDure) and testing.

    They are in `image_folder`, with train/<class>/* and test/<class>/*, or else in cinic10/ of the TFDS directory.
    UserError: the data are absent or incomplete.
    """
    if not options.image_folder:
        try:
            return tfds_source.find(CINIC10, options.data_dir, options.image_size)
        except UserError as error:
            raise UserError(
                f"data set 'cinic10' cannot be read from config.data.data_dir ({error}); download it "
                '(https://doi.org/10.7488/ds/2448) and set --config.data.image_folder to the directory with train/ and '
                'test/, or use --config.data.fake=True'
            ) from error
    folder, splits = file_io.expand_home(options.image_folder, 'config.data.image_folder'), ('train', 'test')
    _classes(folder, splits)
    return source(CINIC10, folder, splits, CINIC10_CLASSES, options.image_size or KNOWN[CINIC10].image[0])


def find_image100(options: ConfigDict) -> Source:
    """Finds IMAGE-100, of side 144: 100 classes of ImageNet, in `image_folder`, with train/<class>/* and val/<class>/*,
    or else TFDS's imagenet2012.

    The paper does not publish its class list, so the user provides one, `class_list`, with one WordNet id per line in
    the order of class numbers; without it, a folder must have exactly 100 classes. Images are resized directly to the
    square, without cropping or preserving the aspect ratio, as in the authors' code. UserError: no such folder, class
    list or class, or no class list where one is required.
    """
    size, wanted = options.image_size or KNOWN[IMAGE100].image[0], KNOWN[IMAGE100].classes
    classes = read_classes(options.class_list) if options.class_list else ()
    if options.image_folder:
        folder, splits = file_io.expand_home(options.image_folder, 'config.data.image_folder'), ('train', 'val')
        present = _classes(folder, splits)
        if not classes and len(present) != wanted:
            raise UserError(
                f"config.data.image_folder '{folder}' holds {len(present)} classes, not {wanted}: choose "
                'some with --config.data.class_list'
            )
        return source(IMAGE100, folder, splits, classes or present, size)
    if not classes:
        raise UserError(
            "data set 'image100' needs --config.data.class_list, a text file with one WordNet id per line, or "
            '--config.data.image_folder with 100 classes, or --config.data.fake=True'
        )
    return tfds_source.find('imagenet2012', options.data_dir, size, classes, alias=IMAGE100)


def read_classes(path: str) -> tuple[str, ...]:
    """The names of classes in the file `config.data.class_list`, in its order; UserError: there are less than two."""
    lines = file_io.read_text(path, 'config.data.class_list', LIST_BYTES).splitlines()
    classes = tuple(line.split()[0] for line in lines if line.strip())
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise UserError(f"config.data.class_list '{path}' must name at least two classes, one per line, none twice")
    return classes


def _classes(folder: Path, splits: tuple[str, str]) -> tuple[str, ...]:
    """The directories of the first split; UserError: a split is missing."""
    if not all((folder / split).is_dir() for split in splits):
        raise UserError(f"config.data.image_folder '{folder}' must have the directories {splits[0]}/ and {splits[1]}/")
    entries = (folder / splits[0]).iterdir()
    return tuple(sorted(entry.name for entry in entries if entry.is_dir() and _shown(entry.name)))


def source(
    name: str,
    folder: Path,
    splits: tuple[str, str],
    classes: tuple[str, ...],
    size: int,
    unlabeled: Sequence[Path] = (),
) -> Source:
    """The data set `name` in a folder with SPLIT/CLASS/*.

    `splits`: the training and the test split; `classes`: in the order of their numbers; `size`: side to resize to;
    `unlabeled`: training images of unknown class. UserError: a class without a directory or without images.
    """
    train, test = ([_files(folder / split / label) for label in classes] for split in splits)
    paths = [path for class_files in (*train, *test, unlabeled) for path in class_files]
    states = [(str(path.relative_to(folder)), path.stat()) for path in paths]
    files = [(name, state.st_size, state.st_mtime_ns) for name, state in states]
    digest = hashlib.sha256(repr((files, classes, size)).encode()).hexdigest()[:12]
    key = f'{name}-folder-{size}px-{digest}'
    return Source(name, key, len(classes), lambda: (_stream(train, size, unlabeled), _stream(test, size)))


def _shown(name: str) -> bool:
    """Whether a name is not of what systems and editors keep beside images: .ipynb_checkpoints, ._0.png."""
    return not name.startswith('.')


def _files(directory: Path) -> list[Path]:
    """The image files of one class, sorted by name."""
    try:
        entries = [entry for entry in os.scandir(directory) if entry.name.lower().endswith(SUFFIXES)]
        names = sorted(entry.name for entry in entries if entry.is_file() and _shown(entry.name))
    except OSError as error:
        raise UserError(
            f"class '{directory.name}' has no readable directory '{directory}': correct config.data.image_folder or, "
            'where there is one, config.data.class_list'
        ) from error
    if not names:
        raise UserError(f"'{directory}' holds no images ({', '.join(SUFFIXES)}): complete config.data.image_folder")
    return [directory / name for name in names]


def _stream(files: list[list[Path]], size: int, unlabeled: Sequence[Path] = ()) -> Stream:
    paths = [path for class_files in (*files, unlabeled) for path in class_files]
    of_classes = [*range(len(files)), -1]
    labels = np.repeat(np.array(of_classes, np.int32), [*map(len, files), len(unlabeled)])
    shape = (size, size, 3)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(paths), CHUNK):
            chunk = slice(start, start + CHUNK)
            yield decode_chunk(paths[chunk], shape, size), labels[chunk]

    return Stream(len(paths), shape, chunks)
