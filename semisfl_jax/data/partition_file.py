"""Partitions as files: one .npz without pickles, checked for damage and for a mismatched data set."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, found, size, warn
from semisfl_jax.data import partition_settings
from semisfl_jax.data.dataset import Dataset
from semisfl_jax.data.partition import Partition

FORMAT = 1
EXPORT = 'export it again (data.save), or use another file'  # advice on a damaged file of the user
_NO_VALIDATION = "use another file, or data.num_validation=0 with data.eval_split='test'"
MOST_BYTES = 2**30  # four bytes per image: enough for all of ImageNet-21k


def save(partition: Partition, path: str | os.PathLike) -> None:
    """Writes a partition atomically; equal partitions give equal bytes.

    Raises:
      UserError: the file cannot be written, or rows are not integers.
    """
    path = Path(path)
    _check_indexes(
        f"the partition for '{path}'",
        server_index=partition.server_index,
        **{f'client_index[{n}]': rows for n, rows in enumerate(partition.client_index)},
        **{f'client_labeled_index[{n}]': rows for n, rows in enumerate(partition.client_labeled_index)},
        validation_index=partition.validation_index,
    )
    meta = {
        'format': FORMAT,
        'dataset': partition.dataset,
        'checksum': partition.checksum,
        'settings': partition.settings,
        'content_hash': partition.content_hash,
    }
    arrays = {
        'meta': np.array(json.dumps(meta, sort_keys=True)),
        'server_index': partition.server_index.astype(np.int32),
        'client_index': _flat(partition.client_index),
        'client_size': _sizes(partition.client_index),
        'client_labeled_index': _flat(partition.client_labeled_index),
        'client_labeled_size': _sizes(partition.client_labeled_index),
    }
    if len(partition.validation_index):
        arrays['validation_index'] = partition.validation_index.astype(np.int32)
    written = io.BytesIO()
    np.savez(written, **arrays)  # type: ignore[arg-type]  # allow_pickle=False came with NumPy 2.2
    with file_io.writing('file'):
        file_io.write(path, written.getvalue())


def load(path: str | os.PathLike, limit: int = MOST_BYTES, advice: str = EXPORT) -> Partition:
    """Reads a partition.

    Args:
      path: the file.
      limit: bytes that it may have, both compressed and uncompressed.
      advice: what messages say to do about a file that is damaged.

    Raises:
      UserError: no such file, not a partition, or damaged.
    """
    file_path = file_io.check_file(path, 'the partition file', limit)
    _check_unpacked(file_path, limit)
    arrays = _entries(file_path, advice)
    indexes = {key: value for key, value in arrays.items() if key != 'meta'}
    _check_indexes(f"the partition file '{path}'", **indexes)
    arrays |= {key: value.astype(np.int32) for key, value in indexes.items()}
    try:
        meta = json.loads(str(arrays['meta']))
        partition = Partition(
            dataset=meta['dataset'],
            checksum=meta['checksum'],
            settings=meta['settings'],
            server_index=arrays['server_index'],
            client_index=_split(arrays['client_index'], arrays['client_size']),
            client_labeled_index=_split(arrays['client_labeled_index'], arrays['client_labeled_size']),
            validation_index=arrays.get('validation_index', np.zeros(0, np.int32)),
        )
        expected = meta['content_hash'] if meta['format'] == FORMAT else ''
    except KeyError as error:
        raise UserError(f"'{path}' is not a partition file: it has no entry {error}; {advice}") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"the partition file '{path}' is damaged ({error}); {advice}") from error
    if partition.content_hash != expected:
        raise UserError(f"the partition file '{path}' is damaged, its content hash differs; {advice}")
    return partition


def _entries(path: Path, advice: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name.

    Raises:
      UserError: it is none, or damaged. NumPy's own words would be on pickles.
    """
    try:
        with path.open('rb') as file:
            beginning = file.read(2)
            file.seek(0)
            if beginning and not b'PK'.startswith(beginning):
                raise UserError(f"'{path}' is not a partition file: it is not an .npz archive; {advice}")
            with np.load(file, allow_pickle=False) as entries:
                return {key: entries[key] for key in entries.files}
    except UserError:
        raise
    except Exception as error:  # NumPy and zipfile raise a dozen types for a damaged file
        raise UserError(f"the partition file '{path}' is damaged or cut short; {advice}") from error


def _check_indexes(whose: str, **indexes: Any) -> None:
    """Raises UserError unless rows and sizes are integers, an empty array of any type aside."""
    for key, rows in indexes.items():
        integral = np.issubdtype(getattr(rows, 'dtype', np.object_), np.integer)
        if not isinstance(rows, np.ndarray) or rows.ndim != 1 or (len(rows) and not integral):
            raise UserError(f'{whose}: {key} is {found(rows)}; use an array of integers, [rows]')


def _check_unpacked(path: Path, limit: int) -> None:
    """Raises UserError if an archive declares that it unpacks to more than `limit` bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return  # `load` reports what is wrong with it
    if unpacked > limit:
        raise UserError(f"'{path}' unpacks to more than {size(limit)}, too much for a partition file; use another")


def load_for(path: str | os.PathLike, dataset: Dataset, config: ConfigDict) -> Partition:
    """Reads a partition and checks it against the data set and configuration of a run.

    Settings that determine a split, such as `num_labeled`, are taken from the file; a warning names those that differ,
    among those that the file has. Whether clients train on labels is up to the configuration, and must fit the file.

    Args:
      path: the file.
      dataset: the data set of the run.
      config: the configuration of the run.

    Raises:
      UserError: the file is unreadable or damaged, made for another data set or number of clients or of validation
        images, with labels at the clients that the configuration does not use or the reverse, or not disjoint.
    """
    partition = load(path)
    if partition.dataset != dataset.name:
        raise UserError(
            f"the partition file '{path}' is for data set '{partition.dataset}', not '{dataset.name}': use another "
            'file or leave config.data.partition_file empty'
        )
    if partition.checksum != dataset.checksum:
        raise UserError(
            f"the partition file '{path}' is for another copy of data set '{dataset.name}', checksum "
            f'{partition.checksum[:12]} against {dataset.checksum[:12]}: use the data it was made from or another file'
        )
    clients = config.federation.num_clients
    if partition.num_clients != clients:
        raise UserError(
            f"the partition file '{path}' is for {partition.num_clients} clients, not {clients}: set "
            f'--config.federation.num_clients={partition.num_clients}'
        )
    if (held_out := len(partition.validation_index)) != config.data.num_validation:
        raise UserError(
            f"the partition file '{path}' holds out {held_out} validation images, not {config.data.num_validation}: "
            + (f'set --config.data.num_validation={held_out}' if held_out else _NO_VALIDATION)
        )
    _check_rows(partition, dataset, path, config.k_s)
    _check_labels(partition, path, config)
    unused = partition_settings.UNUSED
    given, wanted = unused | partition.settings, unused | partition_settings.settings(config)
    if given.get('tasks') != wanted.get('tasks'):
        raise UserError(
            f"the partition file '{path}' is for the tasks {_tasks(given)}, not {_tasks(wanted)} (config.data.tasks): "
            'use another file or leave config.data.partition_file empty'
        )
    for key in sorted(wanted.keys() & given.keys() if partition.settings else ()):
        if (value := given[key]) != wanted[key]:
            warn(f"{key}={value} from the partition file '{path}' is used, not {wanted[key]}")
    return partition


def _tasks(chosen: dict) -> str:
    return ', '.join(chosen.get('tasks', ())) or '(none)'


def _check_rows(partition: Partition, dataset: Dataset, path: str | os.PathLike, k_s: int) -> None:
    """Checks the rows of an external file: in range, no duplicates, known labels where labels are used, and no empty
    client, nor an empty server that has a training phase."""
    labeled = np.concatenate([partition.server_index, *partition.client_labeled_index])
    held_out = partition.validation_index
    rows = np.concatenate([labeled, held_out, *partition.client_index])
    if rows.min(initial=0) < 0 or rows.max(initial=0) >= len(dataset.train_labels):
        fault = 'names rows that the data set does not have'
    elif any(len(np.unique(own)) < len(own) for own in _disjoint(partition, np.append(labeled, held_out))):
        fault = 'lists a row twice'
    elif (dataset.train_labels[labeled] < 0).any():
        fault = 'lists images as labeled whose labels are unknown'
    elif not dataset.targets and (dataset.train_labels[held_out] < 0).any():
        fault = 'holds out images whose labels are unknown'
    elif not len(partition.server_index) and k_s:
        fault = f'leaves the server without images, but config.k_s={k_s} trains on some'
    elif not _sizes(partition.client_index).all():
        fault = 'leaves a client without images'
    elif len(partition.client_labeled_index) != partition.num_clients:
        fault = 'has different numbers of clients for labeled and unlabeled images'
    else:
        return
    raise UserError(f"the partition file '{path}' {fault}: correct it or leave config.data.partition_file empty")


def _check_labels(partition: Partition, path: str | os.PathLike, config: ConfigDict) -> None:
    """Raises UserError if clients have labels that they would not use, or would use labels that none of them has."""
    known, asked = int(_sizes(partition.client_labeled_index).sum()), config.data.client_labels
    if known and not asked:
        raise UserError(
            f"the partition file '{path}' has {known} images with labels at the clients, which would not be used: set "
            f'--config.data.client_labels={known}'
        )
    if not known and asked > 0 and config.federation.mu:
        raise UserError(
            f"the partition file '{path}' has no labels at the clients, but config.data.client_labels={asked}: set "
            '--config.data.client_labels=0, or use another file'
        )


def _disjoint(partition: Partition, labeled: np.ndarray) -> list[np.ndarray]:
    """The sets in which no row may occur twice: all rows or, where tasks share the images, those of every task."""
    if partition.settings.get('task_images') != 'shared':
        return [np.concatenate([labeled, *partition.client_index])]
    tasks = len(partition.settings['tasks'])
    return [np.concatenate([labeled, *partition.client_index[task::tasks]]) for task in range(tasks)]


def _flat(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    return np.concatenate(parts).astype(np.int32)


def _sizes(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    return np.array([len(rows) for rows in parts], np.int32)


def _split(rows: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Inverse of `_flat`; raises ValueError if the sizes do not add up."""
    if sizes.sum() != len(rows) or (sizes < 0).any():
        raise ValueError('sizes do not add up')
    return tuple(np.split(rows, np.cumsum(sizes)[:-1]))
