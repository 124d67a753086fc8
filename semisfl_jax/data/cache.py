"""Decoded arrays on disk, so that a data set is decoded only once.

An entry is a directory of .npy files, four, two for each dense task and one of sizes if test maps have their own, and
meta.json with their checksum. One process writes it to a temporary directory, then moves it into place, while others
wait; it is read as memory maps. Missing, truncated or altered entries are decoded again. If the cache is not writable,
the arrays are held in memory and decoded again by the next run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock
from tqdm.auto import tqdm

from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError, size, warn
from semisfl_jax.data import dataset
from semisfl_jax.data.decode import Chunk, Source, Stream

PROGRESS_DELAY = 5.0  # seconds of decoding before a progress bar appears
_SMALL = ('labels', 'sizes')  # arrays of int32, of which the latter may be missing


def default_dir() -> Path:
    """Where decoded arrays are kept: $XDG_CACHE_HOME/semisfl_jax, else ~/.cache/semisfl_jax."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'semisfl_jax'


def fetch(source: Source, cache_dir: str = '') -> tuple[dict[str, np.ndarray], str]:
    """The arrays of a data set, from the cache if present and intact, else decoded; and their checksum.

    {train,test}_images [n, H, W, C] uint8, {train,test}_labels [n] int32, the maps [n, H, W] uint8 of dense tasks under
    `dataset.target_key`, and test_sizes [m, 2] int32 if these have sizes of their own.
    """
    root = Path(cache_dir).expanduser() if cache_dir else default_dir()
    entry = root / source.key
    if cached := _read(entry, source):
        return cached
    train, test = source.open()
    streams = {'train': train, 'test': test}
    _check_room(source.name, streams, root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f'.{source.key}.lock'):
            if not _read(entry, source, quietly=True):  # another process may have written it
                _write(entry, source, streams)
    except (OSError, NotImplementedError) as error:  # the latter on file systems without locks
        warn(f'decoded arrays of {source.name} are not cached in {root}: {error}')
    if cached := _read(entry, source):
        return cached
    arrays = collect(source.name, streams)
    return arrays, dataset.checksum(source.name, arrays)


def _check_room(name: str, streams: dict[str, Stream], root: Path) -> None:
    """Raises UserError if all images certainly fit neither into memory nor on the disk of `root`."""
    limit = machine.host_memory()
    of_image = {
        split: sum(math.prod(shape[1:]) for shape in _shapes(split, stream).values())
        for split, stream in streams.items()
    }
    total = sum(stream.samples * of_image[split] for split, stream in streams.items())
    chunk = max(min(stream.at_once, stream.samples) * of_image[split] for split, stream in streams.items())
    directory = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(directory).free
    if limit and (chunk > limit or (total > limit and total > free)):
        raise UserError(
            f'{name} in images of {"x".join(map(str, streams["train"].shape))} takes {size(total)}, {size(chunk)} at a '
            f'time, but {directory} has {size(free)} and this machine {size(limit)} of memory; use a smaller '
            'config.data.image_size, or another config.data.cache_dir'
        )


def _read(entry: Path, source: Source, quietly: bool = False) -> tuple[dict[str, np.ndarray], str] | None:
    """The arrays and checksum of the entry, or None if it is missing or damaged."""
    if not entry.exists():
        return None
    try:
        expected = json.loads((entry / 'meta.json').read_text())['checksum']
        # np.asarray drops the memmap subclass, of which every slice would carry a reference to the file.
        arrays = {key: np.asarray(np.load(entry / f'{key}.npy', mmap_mode='r')) for key in _keys(source)}
        if dataset.checksum(source.name, arrays) == expected:
            return arrays, expected
        reason = 'its checksum differs'
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        reason = str(error)
    if not quietly:
        warn(f'the cached arrays in {entry} are damaged ({reason}): decoding again')
    return None


def _keys(source: Source) -> list[str]:
    """Names of the arrays."""
    targets = [dataset.target_key(split, task) for task in source.outputs for split in dataset.SPLITS]
    return [*dataset.ARRAYS, *targets, *([dataset.TEST_SIZES] if source.original else [])]


def _write(entry: Path, source: Source, streams: dict[str, Stream]) -> None:
    """Decodes into a directory beside `entry` and moves it into place."""
    building = entry.with_name(f'.{entry.name}')
    shutil.rmtree(building, ignore_errors=True)  # of a process that was killed
    building.mkdir()
    try:
        for split, stream in streams.items():
            _write_split(building, source.name, split, stream)
        arrays = {key: np.asarray(np.load(building / f'{key}.npy', mmap_mode='r')) for key in _keys(source)}
        (building / 'meta.json').write_text(json.dumps({'checksum': dataset.checksum(source.name, arrays)}))
        shutil.rmtree(entry, ignore_errors=True)
        building.rename(entry)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _shapes(split: str, stream: Stream) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of uint8 that a stream fills: images, then maps."""
    shape = stream.original or stream.shape[:2]
    maps = {dataset.target_key(split, task): (stream.samples, *shape) for task in stream.targets}
    return {f'{split}_images': (stream.samples, *stream.shape), **maps}


def _write_split(folder: Path, name: str, split: str, stream: Stream) -> None:
    """Appends one chunk at a time: only one is in memory, and a full disk raises OSError rather than a signal."""
    small: list[tuple[np.ndarray, ...]] = []  # arrays of every chunk that are not of uint8
    with contextlib.ExitStack() as stack:
        files = []
        for key, shape in _shapes(split, stream).items():
            files.append(stack.enter_context((folder / f'{key}.npy').open('wb')))
            header = {'descr': '|u1', 'fortran_order': False, 'shape': shape}
            np.lib.format.write_array_header_1_0(files[-1], header)
        for images, labels, *rest in _progress(name, split, stream):
            number = len(stream.targets)
            for file, array in zip(files, (images, *rest[:number]), strict=True):
                file.write(np.ascontiguousarray(array).data)
            small.append((labels, *rest[number:]))
    for key, array in _joined(split, small).items():
        np.save(folder / f'{key}.npy', array)


def _joined(split: str, small: list[tuple[np.ndarray, ...]]) -> dict[str, np.ndarray]:
    """The arrays that are not of uint8, as _SMALL lists them, by their names, from those of all chunks."""
    by_kind = zip(_SMALL, zip(*small, strict=True), strict=False)
    return {f'{split}_{kind}': np.concatenate(parts) for kind, parts in by_kind}


def collect(name: str, streams: dict[str, Stream]) -> dict[str, np.ndarray]:
    """Decodes the streams of both splits into arrays in memory, the same as those of a cache entry."""
    arrays: dict[str, np.ndarray] = {}
    for split, stream in streams.items():
        filled = {key: np.empty(shape, np.uint8) for key, shape in _shapes(split, stream).items()}
        small, start, number = [], 0, len(stream.targets)
        for images, labels, *rest in _progress(name, split, stream):
            rows = slice(start, start + len(images))
            for whole, part in zip(filled.values(), (images, *rest[:number]), strict=True):
                whole[rows] = part
            small.append((labels, *rest[number:]))
            start = rows.stop
        arrays |= filled | _joined(split, small)
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
