"""IMAGE-100: 100 classes of ImageNet at 144 × 144, from an ImageNet folder or TFDS's imagenet2012.

The paper does not publish its class list, so the user provides one. Images are resized directly to the square,
without cropping or preserving the aspect ratio, as in the authors' code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from semisfl_jax import user_files
from semisfl_jax.data import tfds_source
from semisfl_jax.data.decode import CHUNK, Chunk, Source, Stream, decode_chunk
from semisfl_jax.errors import UserError

NAME = 'image100'
IMAGE_SIZE = 144
NUM_CLASSES = 100
LIST_BYTES = 2**20  # of a class list: ImageNet's 1,000 ids are 10 kB
SUFFIXES = ('.jpeg', '.jpg', '.png')


def find(image_folder: str, class_list: str, data_dir: str, image_size: int) -> Source:
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
    size = image_size or IMAGE_SIZE
    classes = _read_classes(class_list) if class_list else ()
    if image_folder:
        return _find_folder(Path(image_folder).expanduser(), classes, size)
    if not classes:
        raise UserError(
            "data set 'image100' needs --config.data.class_list, a text file with one WordNet id per line, or "
            '--config.data.image_folder with 100 classes, or --config.data.fake=True'
        )
    return tfds_source.find('imagenet2012', data_dir, size, classes, alias=NAME)


def _read_classes(path: str) -> tuple[str, ...]:
    lines = user_files.read_text(path, 'config.data.class_list', LIST_BYTES).splitlines()
    classes = tuple(line.split()[0] for line in lines if line.strip())
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise UserError(
            f"config.data.class_list '{path}' must name at least two classes, one per line, without repeats"
        )
    return classes


def _find_folder(folder: Path, classes: tuple[str, ...], size: int) -> Source:
    if not (folder / 'train').is_dir() or not (folder / 'val').is_dir():
        raise UserError(f"config.data.image_folder '{folder}' must have the directories train/ and val/")
    present = sorted(path.name for path in (folder / 'train').iterdir() if path.is_dir())
    if not classes and len(present) != NUM_CLASSES:
        raise UserError(
            f"config.data.image_folder '{folder}' holds {len(present)} classes, not {NUM_CLASSES}: "
            'choose some with --config.data.class_list'
        )
    classes = classes or tuple(present)
    files = {split: [_files(folder / split / name) for name in classes] for split in ('train', 'val')}
    sizes = [
        (str(path.relative_to(folder)), path.stat().st_size)
        for split_files in files.values()
        for class_files in split_files
        for path in class_files
    ]
    digest = hashlib.sha256(repr((sizes, classes, size)).encode()).hexdigest()[:12]
    return Source(
        NAME,
        f'{NAME}-folder-{size}px-{digest}',
        len(classes),
        lambda: (_stream(files['train'], size), _stream(files['val'], size)),
    )


def _files(directory: Path) -> list[Path]:
    """The image files of one class, sorted by name."""
    try:
        entries = [entry for entry in os.scandir(directory) if entry.name.lower().endswith(SUFFIXES)]
        names = sorted(entry.name for entry in entries if entry.is_file())
    except OSError as error:
        raise UserError(
            f"class '{directory.name}' has no readable directory '{directory}': correct config.data.class_list or "
            'config.data.image_folder'
        ) from error
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
