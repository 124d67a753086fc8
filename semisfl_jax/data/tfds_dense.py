"""Two sets of tensorflow-datasets (TFDS) with target maps, read without TensorFlow.

oxford_iiit_pet: breeds of cats and dogs, with the trimap of every image. A trimap's border is a band, in which the
outline runs somewhere; so there is no task 'edges'.

coco/2017_panoptic: COCO's images with the segments of every thing and of all stuff. Pixels of no segment have no truth.
Maps for testing are as large as the image was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.data import maps, tfds_source
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.data.decode import MapShape, Source, Stream, decode
from semisfl_jax.tasks import IGNORED

PETS, COCO = 'oxford_iiit_pet', 'coco/2017_panoptic'
VERSION = 2  # to be increased when the same files give other bytes, so that caches are renewed
THINGS = 80  # COCO's first classes; stuff follows


class Set(NamedTuple):
    """How a set is read."""

    splits: tuple[str, str]  # for training and testing
    images: tuple[str, str]  # names of the features that are images
    # A record, its images encoded; the side; and whether maps are resized to it, too, or as large as the image was
    read: Callable[[dict[str, Any], int, bool], maps.Example]


def find(name: str, options: ConfigDict) -> Source:
    """Finds a set, a key of SETS; errors as in `tfds_source.find`. `image_size`: 0 for the set's own side."""
    found, known = SETS[name], KNOWN[name]
    builder, tasks = tfds_source.open_builder(name, options.data_dir), tuple(known.outputs)
    size = options.image_size or known.image[0]

    def open_streams() -> tuple[Stream, Stream]:
        train, test = found.splits
        first = _stream(builder, train, found, size, tasks)
        return first, _stream(builder, test, found, size, tasks, known.original)

    digest = hashlib.sha256(repr((VERSION, tasks)).encode()).hexdigest()[:4]
    key = f'{tfds_source.cache_key(builder, name, size, ())}-dense-{digest}'
    return Source(name, key, known.classes, open_streams, known.outputs)


def _stream(
    builder: tfds_source.Builder,
    split: str,
    found: Set,
    size: int,
    tasks: tuple[str, ...],
    original: MapShape | None = None,
) -> Stream:
    count = builder.info.splits[split].num_examples

    def blocks() -> Iterator[list[dict[str, Any]]]:
        source = tfds_source.open_split(builder, split, found.images)
        for start in range(0, count, maps.AT_ONCE):
            rows = np.arange(start, min(start + maps.AT_ONCE, count))
            yield tfds_source.read(builder, source, rows, found.images)

    def read(record: dict[str, Any]) -> maps.Example:
        return found.read(record, size, not original)

    return maps.stream(count, size, tasks, blocks, read, original)


def _read_pet(record: dict[str, Any], size: int, resized: bool) -> maps.Example:
    """semseg: 0 around, 1 pet, 2 the border between them. saliency: the pet; no truth on the border."""
    image, shape = maps.picture(record['image'], size)
    trimap = maps.decode_map(record['segmentation_mask'], (size, size) if resized else shape)
    targets = {  # of 1 the pet, 2 around it and 3 the border
        'semseg': np.array([0, 1, 0, 2], np.uint8)[trimap],
        'saliency': np.array([0, 1, 0, IGNORED], np.uint8)[trimap],
    }
    return maps.Example(image, int(record['label']), targets)


def _read_coco(record: dict[str, Any], size: int, resized: bool) -> maps.Example:
    """semseg: COCO's 80 things, then its 53 kinds of stuff. stuff: 0 things, then those kinds. edges: of segments.

    The label is the class that most pixels have, -1 if there is no segment.
    """
    image, shape = maps.picture(record['image'], size)
    color = maps.nearest(decode(record['panoptic_image'], 0, 3), *((size, size) if resized else shape)).astype(np.int64)
    segments = color @ np.array([1, 256, 256**2])  # 0: none
    ids, labels = (np.asarray(record['panoptic_objects'][key], np.int64) for key in ('id', 'label'))
    order = np.argsort(ids)
    numbers, classes = np.append(0, ids[order]), np.append(IGNORED, labels[order])
    semseg = classes[np.searchsorted(numbers, segments)].astype(np.uint8)
    known = semseg != IGNORED
    targets = {
        'semseg': semseg,
        'stuff': np.where(known, np.maximum(semseg.astype(np.int64) - THINGS + 1, 0), IGNORED).astype(np.uint8),
        'edges': maps.known_borders(segments, known),
    }
    return maps.Example(image, maps.largest_class(semseg, default=-1), targets)


SETS = {
    PETS: Set(('train', 'test'), ('image', 'segmentation_mask'), _read_pet),
    COCO: Set(('train', 'validation'), ('image', 'panoptic_image'), _read_coco),
}
