"""A cache of decoded arrays on disk, so that a data set is decoded only once.

An entry is a directory with meta.json, which has a checksum, and .npy files: four, two more for each dense task, and
one of sizes if test maps have their own. One process writes the entry to a temporary directory and moves it into place
while others wait; readers map it into memory. Missing, truncated and altered entries are decoded again. So are a user's
files when their content changes; a new modification time alone does not count. If the cache is not writable, the arrays
stay in memory and the next run decodes again.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, warn
from semisfl_jax.data import dataset
from semisfl_jax.data.decode import Chunk, Source, Stream

PROGRESS_DELAY = 5.0  # seconds of decoding before a progress bar appears


def default_dir() -> Path:
    """Returns the folder of decoded arrays: $XDG_CACHE_HOME/semisfl_jax, else ~/.cache/semisfl_jax.

    Raises:
      UserError: the user has no home folder.
    """
    try:
        root = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
        return file_io.expand_home(root, 'XDG_CACHE_HOME') / 'semisfl_jax'
    except RuntimeError as error:
        raise UserError('this user has no home folder, where data and programs are kept; set XDG_CACHE_HOME') from error


def fetch(source: Source, cache_dir: str = '') -> tuple[dict[str, np.ndarray], str]:
    """Returns the arrays of a data set, from the cache if present and intact, else decoded.

    Args:
      source: the data set.
      cache_dir: the cache, '' for `default_dir`.

    Returns:
      The arrays and their checksum: {train,test}_images [n, H, W, C] uint8, {train,test}_labels [n] int32, the maps
      [n, H, W] uint8 of dense tasks and the parts of those of objects under `dataset.target_key`, and test_sizes [m, 2]
      int32 if test maps have sizes of their own.
    """
    entry = _entry(source, cache_dir)
    root = entry.parent
    if cached := _read(entry, source):
        return cached
    train, test = source.open()
    streams = {'train': train, 'test': test}
    try:
        root.mkdir(parents=True, exist_ok=True)
        with file_io.lock(root / f'.{source.key}.lock', wait=True):
            if not _read(entry, source, quietly=True):  # another process may have written it
                _write(entry, source, streams)
    except OSError as error:
        warn(f'decoded arrays of {source.name} are not cached in {root}: {error}')
    if cached := _read(entry, source):
        return cached
    arrays = collect(source.name, streams)
    return arrays, dataset.checksum(source.name, arrays)


def known_checksum(source: Source, cache_dir: str = '') -> str:
    """Returns the checksum that the cache has for a data set, '' if none; the arrays themselves are not checked."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return (_meta(_entry(source, cache_dir), source) or {}).get('checksum', '')
    return ''


def _entry(source: Source, cache_dir: str) -> Path:
    root = file_io.expand_home(cache_dir, 'config.data.cache_dir') if cache_dir else default_dir()
    return root / source.key


def _read(entry: Path, source: Source, quietly: bool = False) -> tuple[dict[str, np.ndarray], str] | None:
    """Returns the arrays and checksum of the entry, or None if it is missing or damaged."""
    if not entry.exists():
        return None
    try:
        if (meta := _meta(entry, source)) is None:
            return None
        arrays = _load(entry)
        if dataset.checksum(source.name, arrays) != meta['checksum']:
            raise ValueError('another checksum')
        return arrays, meta['checksum']
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        if not quietly:
            warn(f'the cached arrays in {entry} are damaged ({error}): decoding again')
    return None


def _meta(entry: Path, source: Source) -> dict[str, str] | None:
    """Returns the metadata of an entry, or None if the source's files have changed since."""
    meta = json.loads((entry / 'meta.json').read_text())
    if source.files and meta['times'] != (times := _times(source)):
        if meta['content'] != _content(source):
            return None
        with contextlib.suppress(OSError):  # the entry may belong to another user
            file_io.write_json(entry / 'meta.json', meta | {'times': times})
    return meta


def _times(source: Source) -> str:
    """Hashes the modification times of a source's files."""
    return hashlib.sha256(repr([path.stat().st_mtime_ns for path in source.files]).encode()).hexdigest()


def _content(source: Source) -> str:
    """Hashes the content of a source's files."""
    digest = hashlib.sha256()
    for path in source.files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _load(folder: Path) -> dict[str, np.ndarray]:
    """Maps all arrays of an entry; np.asarray drops the memmap subclass, whose slices refer to the file."""
    return {path.stem: np.asarray(np.load(path, mmap_mode='r')) for path in folder.glob('*.npy')}


def _write(entry: Path, source: Source, streams: dict[str, Stream]) -> None:
    """Decodes into a directory beside `entry` and moves it into place."""
    building = entry.with_name(f'.{entry.name}')
    shutil.rmtree(building, ignore_errors=True)  # left by a process that was killed
    building.mkdir()
    try:
        meta = {'origin': source.origin, 'times': _times(source), 'content': _content(source)}
        for split, stream in streams.items():
            _write_split(building, source.name, split, stream)
        digest = dataset.checksum(source.name, _load(building))
        file_io.write_json(building / 'meta.json', meta | {'checksum': digest})
        shutil.rmtree(entry, ignore_errors=True)
        building.rename(entry)
        for other in entry.parent.glob(f'{source.name}-*/meta.json') if source.origin else ():
            with contextlib.suppress(UserError):
                if other.parent != entry and file_io.read_object(other).get('origin') == source.origin:
                    shutil.rmtree(other.parent, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _arrays(split: str, stream: Stream) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Returns shapes and types of the arrays that a stream fills, in the order of its chunks."""
    count, shape = stream.samples, stream.original or stream.shape[:2]
    arrays: dict[str, Any] = {
        f'{split}_images': ((count, *stream.shape), np.uint8),
        f'{split}_labels': ((count,), np.int32),
    }
    arrays |= {dataset.target_key(split, task): ((count, *shape), np.uint8) for task in stream.targets}
    arrays |= {dataset.target_key(split, part): ((count, *of), kind) for part, (of, kind) in stream.parts.items()}
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
    """Decodes the streams of all splits into arrays in memory, the same as those of a cache entry.

    Args:
      name: the data set, for the progress bar.
      streams: by split.

    Returns:
      The arrays by name, as in `fetch`.
    """
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
    """Yields the chunks of a stream; shows a progress bar with the time left if decoding takes long."""
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
