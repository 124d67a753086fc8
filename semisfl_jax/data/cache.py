"""Decoded arrays on disk, so that a data set is decoded only once.

An entry is a directory of four .npy files and meta.json with their checksum. It is written to a temporary directory,
then moved into place, and read as memory maps. Missing, truncated or altered entries are decoded again. If the cache
is not writable, the arrays are held in memory and decoded again by the next run.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import logging
from tqdm.auto import tqdm

from semisfl_jax import machine
from semisfl_jax.data import dataset
from semisfl_jax.data.decode import CHUNK, Chunk, Source, Stream
from semisfl_jax.errors import UserError
from semisfl_jax.wording import size

PROGRESS_DELAY = 5.0  # seconds of decoding before a progress bar appears
STALE_SECONDS = 24 * 3600.0  # no decoding takes that long
SPLITS = ('train', 'test')
ARRAYS = tuple(f'{split}_{kind}' for split in SPLITS for kind in ('images', 'labels'))


def default_dir() -> Path:
    """Where decoded arrays are kept: $XDG_CACHE_HOME/semisfl_jax, else ~/.cache/semisfl_jax."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'semisfl_jax'


def fetch(source: Source, cache_dir: str = '') -> tuple[dict[str, np.ndarray], str]:
    """The arrays of a data set, from the cache if present and intact, else decoded.

    Args:
      source: the data set.
      cache_dir: directory of the cache, '' for `default_dir()`.

    Returns:
      {train,test}_images [n, H, W, C] uint8 and {train,test}_labels [n] int32, and their checksum.
    """
    root = Path(cache_dir).expanduser() if cache_dir else default_dir()
    entry = root / source.key
    cached = _read(entry, source.name)
    if cached:
        return cached
    train, test = source.open()
    streams = {'train': train, 'test': test}
    _check_room(source.name, streams, root)
    try:
        _write(entry, source.name, streams)
    except OSError as error:
        logging.warning('decoded arrays of %s are not cached in %s: %s', source.name, root, error)
    cached = _read(entry, source.name)  # even if writing failed: another process may have written it
    if cached:
        return cached
    arrays = _collect(source.name, streams)
    return arrays, dataset.checksum(source.name, arrays)


def _check_room(name: str, streams: dict[str, Stream], root: Path) -> None:
    """Makes sure that decoding may succeed: a chunk fits into memory, and all images do, or fit on the disk of `root`.

    Raises:
      UserError: it certainly cannot.
    """
    shape, limit = streams['train'].shape, machine.host_memory()
    if not limit:
        return
    images = sum(stream.samples for stream in streams.values())
    chunk, total = (count * math.prod(shape) for count in (min(CHUNK, images), images))
    description = f'{name} in images of {"x".join(map(str, shape))}'
    if chunk > limit:
        raise UserError(
            f'{description}: {CHUNK} are decoded at a time and take {size(chunk)}, but this machine has {size(limit)} '
            'of memory; use a smaller config.data.image_size'
        )
    directory = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(directory).free
    if total > limit and total > free:
        raise UserError(
            f'{description} takes {size(total)}, more than {directory} ({size(free)} free) or the memory of this '
            f'machine ({size(limit)}) can hold; use a smaller config.data.image_size, or a config.data.cache_dir with '
            'more room'
        )


def _read(entry: Path, name: str) -> tuple[dict[str, np.ndarray], str] | None:
    """The arrays and checksum of the entry, or None if it is missing or damaged."""
    if not entry.exists():
        return None
    try:
        expected = json.loads((entry / 'meta.json').read_text())['checksum']
        # np.asarray drops the memmap subclass, of which every slice would carry a reference to the file.
        arrays = {key: np.asarray(np.load(entry / f'{key}.npy', mmap_mode='r')) for key in ARRAYS}
        if dataset.checksum(name, arrays) == expected:
            return arrays, expected
        reason = 'its checksum differs'
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        reason = str(error)
    logging.warning('the cached arrays in %s are damaged (%s): decoding again', entry, reason)
    return None


def _write(entry: Path, name: str, streams: dict[str, Stream]) -> None:
    """Decodes into a directory beside `entry` and moves it into place."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    for leftover in entry.parent.glob(f'.{entry.name}-*'):  # of a process that was killed
        if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
    building = entry.parent / f'.{entry.name}-{uuid.uuid4().hex}'
    building.mkdir()
    try:
        for split, stream in streams.items():
            _write_images(building / f'{split}_images.npy', building / f'{split}_labels.npy', name, split, stream)
        arrays = {key: np.asarray(np.load(building / f'{key}.npy', mmap_mode='r')) for key in ARRAYS}
        (building / 'meta.json').write_text(json.dumps({'checksum': dataset.checksum(name, arrays)}))
        shutil.rmtree(entry, ignore_errors=True)
        building.rename(entry)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write_images(images_path: Path, labels_path: Path, name: str, split: str, stream: Stream) -> None:
    """Appends one chunk at a time: only one is in memory, and a full disk raises OSError rather than a signal."""
    header = {'descr': '|u1', 'fortran_order': False, 'shape': (stream.samples, *stream.shape)}
    labels = []
    with images_path.open('wb') as file:
        np.lib.format.write_array_header_1_0(file, header)
        for images, chunk_labels in _progress(name, split, stream):
            file.write(np.ascontiguousarray(images).data)
            labels.append(chunk_labels)
    np.save(labels_path, np.concatenate(labels))


def _collect(name: str, streams: dict[str, Stream]) -> dict[str, np.ndarray]:
    """Decodes into arrays in memory, the same as those of a cache entry."""
    arrays: dict[str, np.ndarray] = {}
    for split, stream in streams.items():
        images = np.empty((stream.samples, *stream.shape), np.uint8)
        labels = np.empty(stream.samples, np.int32)
        start = 0
        for some_images, some_labels in _progress(name, split, stream):
            images[start : start + len(some_images)] = some_images
            labels[start : start + len(some_images)] = some_labels
            start += len(some_images)
        arrays |= {f'{split}_images': images, f'{split}_labels': labels}
    return arrays


def _progress(name: str, split: str, stream: Stream) -> Iterator[Chunk]:
    """The chunks of a stream, with a progress bar and the time left if decoding takes long."""
    with tqdm(
        total=stream.samples,
        desc=f'decoding {name} {split}',
        unit=' images',
        delay=PROGRESS_DELAY,
        leave=False,
        disable=None,  # no control characters if the output is not a terminal
    ) as bar:
        for chunk in stream.chunks():
            yield chunk
            bar.update(len(chunk[0]))
