"""Decoded arrays on disk, so that a data set is decoded only once.

An entry is a directory of .npy files, four, two for each dense task and one of sizes if test maps have their own, and
meta.json with their checksum. One process writes it to a temporary directory, then moves it into place, while others
wait; it is read as memory maps. Missing, truncated or altered entries are decoded again. If the cache is not writable,
the arrays are held in memory and decoded again by the next run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from tqdm.auto import tqdm

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, warn
from semisfl_jax.data import dataset
from semisfl_jax.data.decode import Chunk, Source, Stream

PROGRESS_DELAY = 5.0  # seconds of decoding before a progress bar appears


def default_dir() -> Path:
    """Where decoded arrays are kept: $XDG_CACHE_HOME/semisfl_jax, else ~/.cache/semisfl_jax; UserError: none."""
    try:
        return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'semisfl_jax'
    except RuntimeError as error:
        raise UserError('this user has no home folder, where data and programs are kept; set XDG_CACHE_HOME') from error


def fetch(source: Source, cache_dir: str = '') -> tuple[dict[str, np.ndarray], str]:
    """The arrays of a data set, from the cache if present and intact, else decoded; and their checksum.

    {train,test}_images [n, H, W, C] uint8, {train,test}_labels [n] int32, the maps [n, H, W] uint8 of dense tasks under
    `dataset.target_key`, and test_sizes [m, 2] int32 if these have sizes of their own.
    """
    root = file_io.expand_home(cache_dir, 'config.data.cache_dir') if cache_dir else default_dir()
    entry = root / source.key
    if cached := _read(entry, source):
        return cached
    train, test = source.open()
    streams = {'train': train, 'test': test}
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


def _read(entry: Path, source: Source, quietly: bool = False) -> tuple[dict[str, np.ndarray], str] | None:
    """The arrays and checksum of the entry, or None if it is missing or damaged."""
    if not entry.exists():
        return None
    try:
        expected = json.loads((entry / 'meta.json').read_text())['checksum']
        arrays = _load(entry)
        if dataset.checksum(source.name, arrays) != expected:
            raise ValueError('another checksum')
        return arrays, expected
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        if not quietly:
            warn(f'the cached arrays in {entry} are damaged ({error}): decoding again')
    return None


def _load(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of an entry; np.asarray drops the memmap subclass, whose slices would carry references to the file."""
    return {path.stem: np.asarray(np.load(path, mmap_mode='r')) for path in folder.glob('*.npy')}


def _write(entry: Path, source: Source, streams: dict[str, Stream]) -> None:
    """Decodes into a directory beside `entry` and moves it into place."""
    building = entry.with_name(f'.{entry.name}')
    shutil.rmtree(building, ignore_errors=True)  # of a process that was killed
    building.mkdir()
    try:
        for split, stream in streams.items():
            _write_split(building, source.name, split, stream)
        digest = dataset.checksum(source.name, _load(building))
        (building / 'meta.json').write_text(json.dumps({'checksum': digest}))
        shutil.rmtree(entry, ignore_errors=True)
        building.rename(entry)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _arrays(split: str, stream: Stream) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shapes and types of the arrays that a stream fills, in the order of its chunks."""
    count, shape = stream.samples, stream.original or stream.shape[:2]
    arrays: dict[str, Any] = {
        f'{split}_images': ((count, *stream.shape), np.uint8),
        f'{split}_labels': ((count,), np.int32),
    }
    arrays |= {dataset.target_key(split, task): ((count, *shape), np.uint8) for task in stream.targets}
    return arrays | ({dataset.TEST_SIZES: ((count, 2), np.int32)} if stream.original else {})


def _write_split(folder: Path, name: str, split: str, stream: Stream) -> None:
    """Appends one chunk at a time: only one is in memory, and a full disk raises OSError rather than a signal."""
    arrays = _arrays(split, stream)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((folder / f'{key}.npy').open('wb')) for key in arrays]
        for file, (shape, kind) in zip(files, arrays.values(), strict=True):
            header = {'descr': np.dtype(kind).str, 'fortran_order': False, 'shape': shape}
            np.lib.format.write_array_header_1_0(file, header)
        for chunk in _progress(name, split, stream):
            for file, (_, kind), array in zip(files, arrays.values(), chunk, strict=True):
                file.write(np.ascontiguousarray(array, kind).data)


def collect(name: str, streams: dict[str, Stream]) -> dict[str, np.ndarray]:
    """Decodes the streams of both splits into arrays in memory, the same as those of a cache entry."""
    arrays: dict[str, np.ndarray] = {}
    for split, stream in streams.items():
        filled = {key: np.empty(shape, kind) for key, (shape, kind) in _arrays(split, stream).items()}
        start = 0
        for chunk in _progress(name, split, stream):
            for whole, part in zip(filled.values(), chunk, strict=True):
                whole[start : start + len(part)] = part
            start += len(chunk[0])
        arrays |= filled
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
