"""Reads data sets from folders of image files, SPLIT/CLASS/*, as ImageNet and CINIC-10 are published."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from semisfl_jax.core.errors import UserError
from semisfl_jax.data.decode import CHUNK, Chunk, Source, Stream, decode_chunk

SUFFIXES = ('.jpeg', '.jpg', '.png')


def check(folder: Path, splits: tuple[str, str]) -> None:
    """Makes sure that `folder` has the directories of both splits.

    Raises:
      UserError: it lacks one.
    """
    if not all((folder / split).is_dir() for split in splits):
        needed = ' and '.join(f'{split}/' for split in splits)
        raise UserError(f"config.data.image_folder '{folder}' must have the directories {needed}")


def find(name: str, folder: Path, splits: tuple[str, str], classes: tuple[str, ...], size: int, keys: str) -> Source:
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
