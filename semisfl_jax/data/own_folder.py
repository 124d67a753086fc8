"""A user's images in a folder: train/CLASS/* and test/CLASS/*, of any classes."""

from __future__ import annotations

from pathlib import Path

from semisfl_jax.core.errors import UserError
from semisfl_jax.data import folder
from semisfl_jax.data.decode import Source

NAME = 'folder'
TESTS = ('test', 'val', 'valid')  # names of the second split, the first that is there


def find(image_folder: str, image_size: int) -> Source:
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
        raise UserError(f"data set '{NAME}' needs --config.data.{key}")
    path = Path(image_folder).expanduser()
    splits = 'train', next((name for name in TESTS if (path / name).is_dir()), TESTS[0])
    folder.check(path, splits)
    classes = tuple(sorted(each.name for each in (path / 'train').iterdir() if each.is_dir()))
    if len(classes) < 2:
        raise UserError(
            f"config.data.image_folder '{path}' has {len(classes)} classes in train/: give each class a directory, two "
            'at least'
        )
    return folder.find(NAME, path, splits, classes, image_size, keys='config.data.image_folder')
