"""PASCAL-Context for several tasks, from a folder with the annotations of Maninis et al. (2019).

The layout is that of the archive PASCAL_MT.tgz, which implementations of multi-task learning read:

    ImageSets/Context/{train,val}.txt     ids of the images, 4,998 and 5,105
    JPEGImages/ID.jpg
    semseg/VOC12/ID.png                   0 background, 1 to 20 VOC's classes, 255 ignored
    semseg/pascal-context/ID.png          the same, for images that VOC12/ lacks
    human_parts/ID.mat                    PASCAL-Part's objects, or ID.png with classes 0 to 6
    sal_distill/ID.png                    saliency, 0 to 255
    pascal-context/trainval/ID.mat        LabelMap, the classes of PASCAL-Context, whose borders are the edges

Maninis et al., Attentive Single-Tasking of Multiple Tasks, CVPR 2019.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, first_line
from semisfl_jax.data import maps
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.data.decode import MapShape, Source, Stream
from semisfl_jax.tasks import IGNORED

NAME = 'pascal_context'
ORIGINAL = KNOWN[NAME].original
VERSION = 2  # increase it when the same files give other bytes, to renew caches
OUTPUTS = KNOWN[NAME].outputs
SPLITS = ('train', 'val')
LISTS = 'ImageSets/Context'
LIST_BYTES = 2**22  # of a list of ids: 5,105 are 60 kB
# Possible places of an image's files: the first that exists counts
PLACES = {
    'image': ('JPEGImages/{}.jpg',),
    'semseg': ('semseg/VOC12/{}.png', 'semseg/pascal-context/{}.png'),
    'parts': ('human_parts/{}.mat', 'human_parts/{}.png'),
    'saliency': ('sal_distill/{}.png',),
    'edges': ('pascal-context/trainval/{}.mat',),
}
SALIENT = 128  # level from which a pixel is salient
PERSON = 15  # number of VOC's class
# Head, torso, upper arms, lower arms, upper legs, lower legs; names of PASCAL-Part, 'l' and 'r' for left and right
PART_NAMES = {
    1: 'head hair mouth nose lear rear lebrow rebrow leye reye',
    2: 'torso neck',
    3: 'luarm ruarm',
    4: 'llarm rlarm lhand rhand',
    5: 'luleg ruleg',
    6: 'llleg rlleg lfoot rfoot',
}
PARTS = {name: number for number, names in PART_NAMES.items() for name in names.split()}


def find(options: ConfigDict) -> Source:
    """Finds PASCAL-Context in `image_folder`, whose lists of ids may be replaced by others.

    The label of an image is its largest class of VOC, 0 if it shows none. `image_size` is the side, 0 for 512.

    Raises:
      UserError: a list or a file is missing.
    """
    if not options.image_folder:
        raise UserError(
            f"data set '{NAME}' needs --config.data.image_folder, the folder of PASCAL_MT.tgz (Maninis et al., 2019), "
            'with ImageSets/Context/train.txt and JPEGImages/, or --config.data.fake=True for synthetic images'
        )
    folder = file_io.expand_home(options.image_folder, 'config.data.image_folder')
    size = options.image_size or KNOWN[NAME].image[0]
    files = {split: [_files(folder, name, split) for name in _ids(folder, split)] for split in SPLITS}
    every = tuple(path for image_files in (*files['train'], *files['val']) for path in image_files.values())
    digest = hashlib.sha256(repr((VERSION, size)).encode())
    for path in every:
        digest.update(f'|{path.relative_to(folder)} {path.stat().st_size}|'.encode())

    def open_streams() -> tuple[Stream, Stream]:
        return _stream(files['train'], size), _stream(files['val'], size, ORIGINAL)

    key = f'{NAME}-{size}px-{digest.hexdigest()[:12]}'
    origin = f'{folder.absolute()} {size}'
    return Source(NAME, key, OUTPUTS['semseg'], open_streams, OUTPUTS, files=every, origin=origin)


def _ids(folder: Path, split: str) -> list[str]:
    path = folder / LISTS / f'{split}.txt'
    ids = file_io.read_text(str(path), 'config.data.image_folder', LIST_BYTES).split()
    if not ids or len(set(ids)) < len(ids):
        raise UserError(f"the list '{path}' must name at least one image, one per line, without repeats")
    return ids


def _files(folder: Path, name: str, split: str) -> dict[str, Path]:
    """Finds the files of an image, by what they hold; raises UserError if one is missing."""
    path_by_kind = {}
    for what, places in PLACES.items():
        paths = [folder / place.format(name) for place in places]
        present = next((path for path in paths if path.is_file()), None)
        if present is None:
            raise UserError(
                f"'{paths[0]}' is missing, an image of {LISTS}/{split}.txt: complete "
                'config.data.image_folder, or take the image out of the list'
            )
        path_by_kind[what] = present
    return path_by_kind


def _stream(files: list[dict[str, Path]], size: int, original: MapShape | None = None) -> Stream:
    return maps.stream(len(files), size, tuple(OUTPUTS), lambda start, stop: files[start:stop], _read, original)


def _read(files: dict[str, Path], size: int, resized: bool) -> maps.Example:
    """Decodes an image to size × size, and its maps: `resized` too, or as large as the original image."""
    image, original = maps.picture(files['image'], size)
    shape = (size, size) if resized else original
    semseg = maps.decode_map(files['semseg'], shape)
    label_map = np.asarray(_load(files['edges'], 'LabelMap'))
    targets = {
        'semseg': semseg,
        'parts': _parts(files['parts'], shape),
        'saliency': (maps.decode_map(files['saliency'], shape) >= SALIENT).astype(np.uint8),
        'edges': maps.borders(maps.nearest(label_map, *shape)).astype(np.uint8),
    }
    return maps.Example(image, maps.largest_class(semseg, first=1), targets, original)


def _parts(path: Path, shape: MapShape) -> np.ndarray:
    """Reads the parts of people, `shape` [H, W] uint8, 0 elsewhere; IGNORED everywhere if none is marked."""
    parts = maps.decode_map(path, shape) if path.suffix == '.png' else maps.nearest(_people(path), *shape)
    return parts if parts.any() else np.full_like(parts, IGNORED)


def _people(path: Path) -> np.ndarray:
    """Paints the parts of people in a PASCAL-Part file, [H, W] uint8; where parts overlap, the later one counts."""
    objects = _structs(_load(path, 'anno')['objects'])
    parts = np.zeros(objects[0]['mask'].shape if objects else (1, 1), np.uint8)
    for person in objects:
        for part in _structs(person['parts']) if person['class_ind'] == PERSON else ():
            parts[part['mask'].astype(bool)] = PARTS[part['part_name']]
    return parts


def _structs(values: dict | Iterable[dict]) -> list[dict]:
    """Lists the elements of an array of MATLAB structs; SciPy unpacks arrays of one element."""
    return [values] if isinstance(values, dict) else list(values)


def _load(path: Path, variable: str) -> Any:
    """Loads a variable of a MATLAB file."""
    from scipy.io import loadmat  # slow to import, and only this set needs it

    try:
        return loadmat(path, simplify_cells=True, variable_names=[variable])[variable]
    except Exception as error:  # SciPy raises many types for a damaged file
        reason = first_line(error)
        raise UserError(f"'{path}' has no readable variable {variable} ({reason}): copy the data set again") from error
