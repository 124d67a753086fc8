"""Partitions as files: one .npz without pickles, checked for damage and against the data set of a run."""

import io
import json
import os
from collections.abc import Iterator

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, warn
from semisfl_jax.data.dataset import Dataset
from semisfl_jax.data.partition import UNUSED, Partition, settings

_NAMED = ('dataset', 'checksum', 'settings')  # fields of a partition that are in `meta`
MOST_BYTES = 2**30  # four bytes per image: enough for all of ImageNet-21k


def save(partition: Partition, path: str | os.PathLike, option: str = 'file') -> None:
    """Writes a partition atomically; equal partitions give equal bytes.

    Args:
      partition: the partition.
      path: the file.
      option: the option that named the file; an error advises to choose another.

    Raises:
      UserError: the file cannot be written.
    """
    meta = {'format': 1} | {name: getattr(partition, name) for name in (*_NAMED, 'content_hash')}
    arrays = {
        'meta': np.array(json.dumps(meta, sort_keys=True)),
        'server_index': np.asarray(partition.server_index, np.int32),
        'client_index': np.concatenate(partition.client_index).astype(np.int32),
        'client_size': _sizes(partition.client_index),
        'client_labeled_index': np.concatenate(partition.client_labeled_index).astype(np.int32),
        'client_labeled_size': _sizes(partition.client_labeled_index),
    }
    if len(partition.validation_index):
        arrays['validation_index'] = np.asarray(partition.validation_index, np.int32)
    written = io.BytesIO()
    np.savez(written, **arrays)  # type: ignore[arg-type]  # allow_pickle=False came with NumPy 2.2
    with file_io.writing(option):
        file_io.write(file_io.expand_home(path, option), written.getvalue())


def load(path: str | os.PathLike, advice: str = 'export it again (data.save), or use another file') -> Partition:
    """Reads a partition.

    Args:
      path: the file.
      advice: how to go on if it is unreadable, for the error.

    Raises:
      UserError: the file does not exist, is not a partition, or is damaged.
    """
    file = file_io.check_file(path, 'the partition file', MOST_BYTES)
    try:
        arrays = file_io.read_npz(file)
        meta = json.loads(str(arrays.pop('meta')))
        arrays = {key: value.astype(np.int32, casting='same_kind') for key, value in arrays.items()}
        partition = Partition(
            **{name: meta[name] for name in _NAMED},
            server_index=arrays['server_index'],
            client_index=_split(arrays['client_index'], arrays['client_size']),
            client_labeled_index=_split(arrays['client_labeled_index'], arrays['client_labeled_size']),
            validation_index=arrays.get('validation_index', np.zeros(0, np.int32)),
        )
        if partition.content_hash != meta['content_hash']:
            raise ValueError('another content hash')
    except Exception as error:  # NumPy and zipfile raise a dozen types for a damaged or foreign file
        raise UserError(f"'{path}' is not a partition file, or damaged ({error!r}); {advice}") from error
    return partition


def load_for(path: str | os.PathLike, dataset: Dataset, config: ConfigDict) -> Partition:
    """Reads a partition and checks it against the data set and configuration of a run.

    Settings that determine a split, such as `num_labeled`, come from the file; a warning names those in the file that
    differ from the configuration. The configuration decides whether clients train on labels, and the file must fit.

    Args:
      path: the file.
      dataset: the data set of the run.
      config: the configuration of the run.

    Raises:
      UserError: the file is unreadable or damaged, or does not fit the data set or the configuration.
    """
    partition = load(path)
    stored, wanted = UNUSED | partition.settings, UNUSED | settings(config)
    for fault in (*_misfits(partition, dataset, config, stored, wanted), *_wrong_rows(partition, dataset, config.k_s)):
        raise UserError(f"the partition file '{path}' {fault}, or use another config.data.partition_file")
    labels = int(_sizes(partition.client_labeled_index).sum())
    if labels and not config.federation.mu:
        warn(f"config.federation.mu=0: the {labels} labeled images that clients have in '{path}' are not used")
    for key in sorted(wanted.keys() & stored.keys() - {'use_client_labels'} if partition.settings else ()):
        if (value := stored[key]) != wanted[key]:
            warn(f"{key}={value} from the partition file '{path}' is used, not {wanted[key]}")
    return partition


def _misfits(partition: Partition, dataset: Dataset, config: ConfigDict, stored: dict, wanted: dict) -> Iterator[str]:
    """Yields each way in which a partition does not fit the data set or the configuration, with a remedy."""
    clients, held_out, asked = config.federation.num_clients, len(partition.validation_index), config.data.client_labels
    labels = int(_sizes(partition.client_labeled_index).sum())
    if partition.checksum != dataset.checksum:
        of = f"'{partition.dataset}', checksum {partition.checksum[:12]}"
        here = f"'{dataset.name}', {dataset.checksum[:12]}"
        yield f'is for data set {of}, not {here}: set config.data.name, or use the data it was made from'
    if partition.num_clients != clients:
        use = f'--config.federation.num_clients={partition.num_clients}'
        yield f'is for {partition.num_clients} clients, not {clients}: set {use}'
    if held_out != config.data.num_validation:
        use = f'--config.data.num_validation={held_out}' + ('' if held_out else " and data.eval_split='test'")
        yield f'holds out {held_out} validation images, not {config.data.num_validation}: set {use}'
    if labels and asked < 1:
        yield f'has {labels} images with labels at the clients: set --config.data.client_labels={labels}'
    if not labels and asked > 0 and config.federation.mu:
        yield f'has no labels at the clients, not {asked}: set --config.data.client_labels=0'
    if stored.get('tasks') != wanted.get('tasks'):
        named = [', '.join(chosen.get('tasks', ())) or '(none)' for chosen in (stored, wanted)]
        yield f'is for the tasks {named[0]}, not {named[1]}: set config.data.tasks'


def _wrong_rows(partition: Partition, dataset: Dataset, k_s: int) -> Iterator[str]:
    """Yields the first fault in the rows of a file, which may be handmade."""
    labeled = np.concatenate([partition.server_index, *partition.client_labeled_index])
    held_out = partition.validation_index
    rows = np.concatenate([labeled, held_out, *partition.client_index])
    # Sets of rows without repetition: all rows or, where tasks share the images, those of each task
    tasks = len(partition.settings['tasks']) if partition.settings.get('task_images') == 'shared' else 1
    sets = [np.concatenate([labeled, held_out, *partition.client_index[task::tasks]]) for task in range(tasks)]
    if rows.min(initial=0) < 0 or rows.max(initial=0) >= len(dataset.train_labels):
        yield 'names rows that the data set does not have: correct it'
    elif any(len(np.unique(each)) < len(each) for each in sets):
        yield 'lists a row twice: correct it'
    elif (dataset.train_labels[labeled] < 0).any():
        yield 'lists images as labeled whose labels are unknown: correct it'
    elif not len(partition.server_index) and k_s:
        yield f'leaves the server without images, but config.k_s={k_s} trains on some: correct it'
    elif len(partition.client_labeled_index) != partition.num_clients:
        yield 'has not one list of labeled rows for every client: correct it'
    elif not _sizes(partition.client_index).all():
        yield 'leaves a client without images: correct it'


def _sizes(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    return np.array([len(rows) for rows in parts], np.int32)


def _split(rows: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Splits rows into parts of these sizes."""
    if sizes.sum() != len(rows) or (sizes < 0).any():
        raise ValueError('sizes do not add up')
    return tuple(np.split(rows, np.cumsum(sizes)[:-1]))
