"""IMAGE-100: 100 classes of ImageNet at 144 × 144, from an ImageNet folder or TFDS's imagenet2012.

The paper does not publish its class list, so the user provides one. Images are resized directly to the square,
without cropping or preserving the aspect ratio, as in the authors' code.
"""

from __future__ import annotations

from pathlib import Path

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import folder, tfds_source
from semisfl_jax.data.decode import Source

NAME = 'image100'
IMAGE_SIZE = 144
NUM_CLASSES = 100
LIST_BYTES = 2**20  # of a class list: ImageNet's 1,000 ids are 10 kB
SPLITS = ('train', 'val')


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
    lines = file_io.read_text(path, 'config.data.class_list', LIST_BYTES).splitlines()
    classes = tuple(line.split()[0] for line in lines if line.strip())
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise UserError(
            f"config.data.class_list '{path}' must name at least two classes, one per line, without repeats"
        )
    return classes


def _find_folder(path: Path, classes: tuple[str, ...], size: int) -> Source:
    folder.check(path, SPLITS)
    present = sorted(entry.name for entry in (path / SPLITS[0]).iterdir() if entry.is_dir())
    if not classes and len(present) != NUM_CLASSES:
        raise UserError(
            f"config.data.image_folder '{path}' holds {len(present)} classes, not {NUM_CLASSES}: "
            'choose some with --config.data.class_list'
        )
    classes = classes or tuple(present)
    keys = 'config.data.class_list or config.data.image_folder'
    return folder.find(NAME, path, SPLITS, classes, size, keys)
