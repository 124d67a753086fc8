"""Sets of tensorflow-datasets (TFDS), read without TensorFlow: all for image classification, and two with target maps.

Prepared data in TFDS's array_record format is read record by record; the images stay encoded until
`semisfl_jax.data.decode` turns them into arrays.
"""

import contextlib
import hashlib
import importlib.util
import io
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, did_you_mean, first_line, install
from semisfl_jax.data import dataset, maps
from semisfl_jax.data.catalog import KNOWN
from semisfl_jax.data.decode import CHUNK, VERSION, Chunk, MapShape, Source, Stream, decode, decode_chunk
from semisfl_jax.tasks import IGNORED

UNLABELED = ('unlabelled', 'unlabeled')  # splits that join the training set with label -1
LABELS_AT_ONCE = 4096
SAMPLED_BYTES = 1 << 16  # read from both ends of a file to fingerprint it

Builder: TypeAlias = Any  # tfds.core.DatasetBuilder; the library is imported on first use


def find(name: str, data_dir: str, image_size: int, classes: tuple[str, ...] = (), alias: str = '') -> Source:
    """Finds a prepared TFDS data set, preparing it first where TensorFlow is installed.

    The training set is split 'train', followed by an unlabeled split if there is one. The test set is split 'test', or
    'validation' where test labels are missing, or a stratified fifth of 'train' (`dataset.holdout`).

    Args:
      name: TFDS name, with configuration and version if wanted: 'imagenet_resized/32x32'.
      data_dir: TFDS data directory, '' for $TFDS_DATA_DIR or else TFDS's own default.
      image_size: side to resize to, 0 to keep.
      classes: label names to keep, numbered in this order; () keeps all.
      alias: the canonical name, '' for `name`.

    Raises:
      UserError: unknown name, not prepared, prepared in another format, or not an image-classification set.
    """
    builder = open_builder(name, data_dir)
    image, label = _check_features(name, builder)
    splits = builder.info.splits
    if 'train' not in splits or not splits['train'].num_examples:
        raise UserError(f"data set '{name}' has no split 'train', but {sorted(splits)}: choose another data set")
    if missing := sorted(set(classes) - set(label.names)):
        raise UserError(f"class '{missing[0]}' of config.data.class_list is not a class of data set '{name}'")
    channels = image.shape[-1] or 3
    size = (image_size, image_size) if image_size else image.shape[:2]

    def open_streams() -> tuple[Stream, Stream]:
        if all(size):
            shape = (*size, channels)
        else:  # the features do not specify the size
            first = read(builder, open_split(builder, 'train'), np.arange(1))[0]
            shape = decode(first['image'], 0, channels).shape
        wanted = [label.str2int(c) for c in classes]
        lut = np.arange(label.num_classes + 1, dtype=np.int32)  # the new label for each old one
        lut[-1] = -1  # the label -1 stays
        lut[wanted] = np.arange(len(wanted))
        train, test = _parts(builder, wanted)
        return _stream(builder, train, shape, image_size, lut), _stream(builder, test, shape, image_size, lut)

    key = f'{cache_key(builder, alias or name, image_size, classes)}-v{VERSION}'
    names = classes or tuple(label.names)
    return Source(alias or name, key, len(names), open_streams, class_names=names)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses TFDS's messages about OpenCV, TensorFlow and missing files."""
    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)


def open_builder(name: str, data_dir: str) -> Builder:
    """Returns the TFDS builder of a data set, prepared first if necessary; arguments and errors as in `find`."""
    with _quiet():
        import tensorflow_datasets as tfds  # takes half a second, and not every run needs it
    directory = data_dir or os.environ.get('TFDS_DATA_DIR') or str(tfds.core.constants.DATA_DIR)
    directory = directory if '://' in directory else str(file_io.expand_home(directory, 'config.data.data_dir'))
    builder = _open(name, directory)
    with _quiet():
        prepared = builder.is_prepared()
    if prepared:
        return builder
    _prepare(name, builder, directory)
    return _open(name, directory)  # again: a builder caches what it read when created


def _open(name: str, directory: str) -> Builder:
    import tensorflow_datasets as tfds

    try:
        base, options = tfds.core.naming.parse_builder_name_kwargs(name, data_dir=directory)
    except ValueError as error:
        use = "write it as 'mnist', 'emnist/letters' (a variant) or 'mnist:3.0.1' (a version)"
        raise UserError(f"config.data.name='{name}' cannot be the name of a data set; {use}") from error
    try:
        with _quiet():
            return tfds.builder(name, data_dir=directory)
    except tfds.core.DatasetNotFoundError as error:
        if name in KNOWN:  # TFDS does not make it
            raise UserError(f'there is no {directory}/{name}') from error
        names = [*tfds.list_builders(with_community_datasets=False), *KNOWN]
        unknown = f"unknown data set '{name}' in config.data.name{did_you_mean(name, names)}"
        use = 'use one of `tfds.list_builders()`, or register your own (docs/own-data.md)'
        raise UserError(f'{unknown}; {use}') from error
    except ModuleNotFoundError as error:  # the builder's code may need TensorFlow; prepared files say as much
        try:
            with _quiet():
                return tfds.core.read_only_builder.builder_from_files(str(base), **options)
        except tfds.core.DatasetNotFoundError:
            raise UserError(_not_prepared(name, f'{directory}/{name}')) from error
    except Exception as error:  # a builder's own code may raise anything
        raise UserError(
            f"data set '{name}' cannot be opened by tensorflow-datasets: {first_line(error)}; correct config.data.name"
        ) from error


def _prepare(name: str, builder: Builder, directory: str) -> None:
    """Downloads and prepares the data set if TensorFlow, which TFDS needs for writing, is installed."""
    if importlib.util.find_spec('tensorflow') is None:
        raise UserError(_not_prepared(name, builder.data_path))
    logging.info('preparing %s in %s', name, directory)
    try:
        _hide_accelerators()
        builder.download_and_prepare(file_format='array_record')
    except Exception as error:  # network, disk, missing manual downloads, missing packages
        raise UserError(f"data set '{name}' cannot be prepared in {directory}: {first_line(error)}") from error


def _not_prepared(name: str, path: str | os.PathLike) -> str:
    return (
        f"data set '{name}' is not prepared, {path} does not exist: point --config.data.data_dir or "
        f'TFDS_DATA_DIR at a directory that has it; or to download and prepare it, {install("prepare")}, and repeat '
        'the command; or try synthetic images with --config.data.fake=True'
    )


def _hide_accelerators() -> None:
    """Hides the devices that JAX computes on from TensorFlow, which would allocate all of a GPU's memory."""
    import tensorflow as tf

    for kind in ('GPU', 'TPU'):
        tf.config.set_visible_devices([], kind)


def _check_features(name: str, builder: Builder) -> tuple[Any, Any]:
    """Returns the image and the label feature; raises UserError if they are missing or of the wrong kind."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    fields = dict(features) if isinstance(features, tfds.features.FeaturesDict) else {}
    image, label = fields.get('image'), fields.get('label')
    fits = isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
    if not fits or not isinstance(label, tfds.features.ClassLabel) or not label.num_classes:
        raise UserError(
            f"data set '{name}' is not an image-classification set: it needs the features 'image' (uint8) and "
            f"'label' (a class), but has {sorted(fields)}"
        )
    return image, label


def open_split(builder: Builder, split: str, images: tuple[str, ...] = ('image',)) -> Any:
    """Opens the records of a split.

    Args:
      builder: the data set.
      split: its name.
      images: features that stay encoded.

    Raises:
      UserError: the data set is prepared in another format.
    """
    import tensorflow_datasets as tfds

    try:
        with _quiet():
            return builder.as_data_source(split=split, decoders={name: tfds.decode.SkipDecoding() for name in images})
    except NotImplementedError as error:
        raise UserError(
            f"data set '{builder.info.full_name}' in {builder.data_path} is not in the array_record format, the only "
            'one that can be read without TensorFlow: prepare it in another directory and point '
            '--config.data.data_dir there'
        ) from error


def read(builder: Builder, source: Any, rows: np.ndarray, images: tuple[str, ...] = ('image',)) -> list[dict]:
    """Reads records.

    Args:
      builder: the data set.
      source: the records, from `open_split`.
      rows: numbers of the records to read.
      images: image features, as given to `open_split`.

    Raises:
      UserError: a file is damaged.
    """
    try:
        records = source.__getitems__(rows.tolist())
        if all(record[name] for record in records for name in images):
            return records
        reason = 'a record is empty'
    except Exception as error:  # the C++ reader raises various errors for a damaged or missing file
        reason = first_line(error)
    raise UserError(_unreadable(builder, reason))


def _unreadable(builder: Builder, reason: str) -> str:
    what = f"data set '{builder.info.full_name}' in {builder.data_path}"
    return f'{what} cannot be read ({reason}): prepare or copy it again'


def _labels(builder: Builder, split: str) -> np.ndarray:
    """Reads the labels [n] int32 of a split without decoding images."""
    source = open_split(builder, split)
    blocks = np.array_split(np.arange(len(source)), -(-len(source) // LABELS_AT_ONCE))
    return np.array([r['label'] for block in blocks for r in read(builder, source, block)], np.int32)


def _parts(builder: Builder, wanted: list[int]) -> tuple[list, list]:
    """Returns the parts of training and test set, pairs (split, rows), with only the `wanted` labels, if any."""

    def rows(split: str) -> np.ndarray:
        if not wanted:
            return np.arange(builder.info.splits[split].num_examples)
        return np.flatnonzero(np.isin(_labels(builder, split), wanted))

    unlabeled = [(split, rows(split)) for split in UNLABELED if split in builder.info.splits and not wanted]
    train_rows = rows('train')
    for split in ('test', 'validation'):
        info = builder.info.splits.get(split)
        if not info or not info.num_examples:
            continue
        if read(builder, open_split(builder, split), np.arange(1))[0]['label'] >= 0:
            return [('train', train_rows), *unlabeled], [(split, rows(split))]
    train, held = dataset.holdout(_labels(builder, 'train')[train_rows])
    return [('train', train_rows[train]), *unlabeled], [('train', train_rows[held])]


def _stream(builder: Builder, parts: list, shape: tuple[int, int, int], image_size: int, lut: np.ndarray) -> Stream:
    """Streams the rows of several splits, pairs (split, rows), one after another."""

    def chunks() -> Iterator[Chunk]:
        for split, rows in parts:
            source = open_split(builder, split)
            for start in range(0, len(rows), CHUNK):
                records = read(builder, source, rows[start : start + CHUNK])
                labels = lut[[int(r['label']) for r in records]]
                yield decode_chunk([r['image'] for r in records], shape, image_size), labels

    return Stream(sum(len(rows) for _, rows in parts), shape, chunks)


def cache_key(builder: Builder, name: str, image_size: int, classes: tuple[str, ...]) -> str:
    """Returns the name of the cache entry; it changes with the size, beginning or end of a prepared file.

    Args:
      builder: the data set.
      name: how the key begins.
      image_size: side to resize to, 0 to keep.
      classes: label names to keep.

    Raises:
      UserError: a file cannot be read.
    """
    digest = hashlib.sha256(repr((image_size, classes)).encode())
    try:
        for path in sorted(path for path in builder.data_path.iterdir() if path.is_file()):
            with path.open('rb') as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(f'|{path.name} {size}|'.encode())
                for start in (0, max(0, size - SAMPLED_BYTES)):
                    file.seek(start)
                    digest.update(file.read(SAMPLED_BYTES))
    except OSError as error:
        raise UserError(_unreadable(builder, first_line(error))) from error
    readable = re.sub(r'[^\w.]+', '-', f'{name}-{builder.version}' + (f'-{image_size}px' if image_size else ''))
    return f'{readable}-{digest.hexdigest()[:12]}'


# --- two sets with target maps

PETS, COCO = 'oxford_iiit_pet', 'coco/2017_panoptic'
DENSE_VERSION = 2  # increase it when the same files give other bytes, to renew caches
THINGS = 80  # COCO's first classes; stuff follows


def find_dense(name: str, options: ConfigDict) -> Source:
    """Finds a data set with target maps; errors as in `find`.

    Args:
      name: a key of SETS.
      options: `config.data`; `image_size` 0 means the set's own side.
    """
    (train, test, images, read_example), known = SETS[name], KNOWN[name]
    builder, tasks = open_builder(name, options.data_dir), tuple(known.outputs)
    size = options.image_size or known.image[0]

    def stream(split: str, original: MapShape | None = None) -> Stream:
        source = open_split(builder, split, images)

        def records(start: int, stop: int) -> list[dict[str, Any]]:
            return read(builder, source, np.arange(start, stop), images)

        return maps.stream(len(source), size, tasks, records, read_example, original)

    def open_streams() -> tuple[Stream, Stream]:
        return stream(train), stream(test, known.original)

    digest = hashlib.sha256(repr((DENSE_VERSION, tasks)).encode()).hexdigest()[:4]
    key = f'{cache_key(builder, name, size, ())}-dense-{digest}'
    return Source(name, key, known.classes, open_streams, known.outputs)


def _read_pet(record: dict[str, Any], size: int, resized: bool) -> maps.Example:
    """Reads a cat or dog with its trimap, labeled with the breed.

    semseg: 0 around, 1 pet, 2 their border. saliency: the pet; no truth on the border. This is a band that contains the
    outline, so there is no task 'edges'.
    """
    image, shape = maps.picture(record['image'], size)
    trimap = maps.decode_map(record['segmentation_mask'], (size, size) if resized else shape)
    targets = {  # the trimap has 1 for the pet, 2 around it and 3 for the border
        'semseg': np.array([0, 1, 0, 2], np.uint8)[trimap],
        'saliency': np.array([0, 1, 0, IGNORED], np.uint8)[trimap],
    }
    return maps.Example(image, int(record['label']), targets, shape)


def _read_coco(record: dict[str, Any], size: int, resized: bool) -> maps.Example:
    """Reads an example, labeled with the class that most pixels have, or -1 if there is no segment.

    semseg: COCO's 80 things, then its 53 kinds of stuff. stuff: 0 on things, then those kinds. edges: borders of
    segments. Pixels outside all segments have no truth. Test maps keep the original size of the image.
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
    return maps.Example(image, maps.largest_class(semseg, default=-1), targets, shape)


# Name -> split for training, split for testing, image features, and reader of an encoded record (`maps.stream`)
SETS: dict[str, tuple[str, str, tuple[str, str], Callable[..., maps.Example]]] = {
    PETS: ('train', 'test', ('image', 'segmentation_mask'), _read_pet),
    COCO: ('train', 'validation', ('image', 'panoptic_image'), _read_coco),
}
