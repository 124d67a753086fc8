"""Data sets in folders of image files, SPLIT/CLASS/*: a user's, CINIC-10 and IMAGE-100 (these two also from TFDS)."""

import hashlib
import mimetypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, count, warn
from semisfl_jax.data import tfds_source
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.data.decode import CHUNK, VERSION, Chunk, Source, Stream, decode_chunk, formats, suffixes

FOLDER, CINIC10, IMAGE100 = 'folder', 'cinic10', 'image100'  # names of data sets
CINIC10_CLASSES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')
LIST_BYTES = 2**20  # of a class list: ImageNet's 1,000 ids are 10 kB


def find_own(options: ConfigDict) -> Source:
    """Finds a user's images in train/CLASS/*, test/CLASS/* (or val/ or valid/) and, if present, unlabeled/*.

    Classes are numbered in the order of their names; images in unlabeled/ have no known class.

    Raises:
      UserError: `image_folder` or `image_size` is not set, or the folder is incomplete or has a single class.
    """
    if not options.image_folder or not options.image_size:
        where, side = 'image_folder=DIR, with train/ and test/', 'image_size=32, the side to resize to'
        raise UserError(f"data set '{FOLDER}' needs --config.data.{side if options.image_folder else where}")
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
    return source(FOLDER, folder, ('train', test), classes, options.image_size, unlabeled, alone=True)


def find_cinic10(options: ConfigDict) -> Source:
    """Finds CINIC-10, of side 32: 90,000 images each for training, validation (not used, as in FedDure) and testing.

    They are in `image_folder`, with train/<class>/* and test/<class>/*, or else in cinic10/ of the TFDS directory.

    Raises:
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
    """Finds IMAGE-100, of side 144: 100 classes of ImageNet.

    They are in `image_folder`, with train/<class>/* and val/<class>/*, or else in TFDS's imagenet2012. The paper does
    not publish its class list, so the user provides one, `class_list`, with one WordNet id per line in the order of
    class numbers; without it, the folder must have exactly 100 classes. Images are resized directly to the square,
    without cropping or preserving the aspect ratio, as in the authors' code.

    Raises:
      UserError: no such folder, class list or class, or no class list where one is required.
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
    """Reads the class names in the file `config.data.class_list`, in its order.

    Raises:
      UserError: the file has fewer than two classes, or one twice.
    """
    lines = file_io.read_text(path, 'config.data.class_list', LIST_BYTES).splitlines()
    classes = tuple(line.split()[0] for line in lines if line.strip())
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise UserError(f"config.data.class_list '{path}' must name two or more classes, one per line, without repeats")
    return classes


def _classes(folder: Path, splits: tuple[str, str]) -> tuple[str, ...]:
    """Lists the class directories of the first split, sorted; raises UserError if a split is missing."""
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
    alone: bool = False,
) -> Source:
    """Describes a data set in a folder with SPLIT/CLASS/*.

    Args:
      name: of the data set.
      folder: where it is.
      splits: the training and the test split.
      classes: directories, in the order of class numbers.
      size: side to resize to.
      unlabeled: training images of unknown class.
      alone: warn of other images in the folder.

    Raises:
      UserError: a class has no directory or no images.
    """
    train, test = ([_files(folder / split / label) for label in classes] for split in splits)
    paths = [path for class_files in (*train, *test, unlabeled) for path in class_files]
    if alone and (others := _other_images(folder, paths)):
        warn(
            f"config.data.image_folder '{folder}': {count(len(others), 'image')} left out, such as '{others[0]}'; only "
            f'those in {splits[0]}/CLASS/, {splits[1]}/CLASS/ and unlabeled/ are read, in {", ".join(formats())}'
        )
    files = [(str(path.relative_to(folder)), path.stat().st_size) for path in paths]
    digest = hashlib.sha256(repr((VERSION, files, classes, size)).encode()).hexdigest()[:12]
    return Source(
        name,
        f'{name}-folder-{size}px-{digest}',
        len(classes),
        lambda: (_stream(train, size, unlabeled), _stream(test, size)),
        class_names=classes,
        files=tuple(paths),
        origin=f'{folder.absolute()} {size} {classes}',
    )


def _other_images(folder: Path, paths: list[Path]) -> list[Path]:
    """Returns the images in a folder that are not among `paths`, relative to it and sorted."""
    read, others = {*paths}, []
    for home, folders, names in os.walk(folder):
        folders[:] = filter(_shown, folders)
        others += [path for name in filter(_shown, names) if (path := Path(home, name)) not in read]
    kinds = {path: mimetypes.guess_type(path.name)[0] or '' for path in others}
    images = [path for path in others if kinds[path].startswith('image/') or path.name.lower().endswith(suffixes())]
    return sorted(path.relative_to(folder) for path in images)


def _shown(name: str) -> bool:
    """Returns False for hidden names, which systems and editors keep beside images: .ipynb_checkpoints, ._0.png."""
    return not name.startswith('.')


def _files(directory: Path) -> list[Path]:
    """Lists the image files of one class, sorted by name."""
    try:
        entries = [entry for entry in os.scandir(directory) if entry.name.lower().endswith(suffixes())]
        names = sorted(entry.name for entry in entries if entry.is_file() and _shown(entry.name))
    except OSError as error:
        raise UserError(
            f"class '{directory.name}' has no readable directory '{directory}': correct config.data.image_folder or, "
            'where there is one, config.data.class_list'
        ) from error
    if not names:
        raise UserError(f"'{directory}' holds no images ({', '.join(formats())}): complete config.data.image_folder")
    return [directory / name for name in names]


def _stream(files: list[list[Path]], size: int, unlabeled: Sequence[Path] = ()) -> Stream:
    paths = [path for class_files in (*files, unlabeled) for path in class_files]
    class_numbers = [*range(len(files)), -1]
    labels = np.repeat(np.array(class_numbers, np.int32), [*map(len, files), len(unlabeled)])
    shape = (size, size, 3)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(paths), CHUNK):
            chunk = slice(start, start + CHUNK)
            yield decode_chunk(paths[chunk], shape, size), labels[chunk]

    return Stream(len(paths), shape, chunks)
