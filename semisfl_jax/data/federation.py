"""Arranges the data of an experiment as the arrays that a jitted round takes.

With residency 'device' all images are on the device, once. With 'host' the clients' images stay in host memory, or on
disk behind a memory map, and each round gets the rows that it will draw.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng
from semisfl_jax.core.clients import shard
from semisfl_jax.core.types import Array, Cohort, Federation
from semisfl_jax.data.dataset import Dataset
from semisfl_jax.data.partition import Partition

_whole = partial(shard, None)


def count_unknown(dataset: Dataset, partitions: Sequence[Partition]) -> int:
    """Counts the clients' images whose label is unknown; an image that several partitions use counts once."""
    held = np.unique(np.concatenate([rows for partition in partitions for rows in partition.client_index]))
    return int(np.sum(dataset.train_labels[held] < 0))


@dataclasses.dataclass(frozen=True, eq=False)
class HostFederation:
    """Client images in host memory.

    `tables` has everything except the images: its `client_images` are [0, H, W, C], and its `index` and
    `labeled_index` refer to rows of `images`, so that `sampling.rows` gives the rows that a round will read.
    """

    tables: Federation
    images: np.ndarray  # [n, H, W, C] uint8, the training set
    labels: np.ndarray  # [n] int32
    targets: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by dense task (T): [n, …], `Targets.train`

    def streamed(self, rows: Array | np.ndarray, reads: str = 'batches', place: Callable = _whole) -> Federation:
        """Builds the federation of one round.

        Args:
          rows: [A, ...] rows of `images` for each active client, in the order in which it reads them; [R, A, ...] if
            `tables` are those of R trials.
          reads: the unit in which rows are read, `Method.reads`.
          place: (shape, fetch) -> an array of that shape on the device; `fetch(slice)` returns some of its rows.

        Returns:
          A Federation with `streamed` set and client_images [rows.size, H, W, C]; of R trials, [R, rows.size / R, …].
        """
        leading, tasks = np.shape(rows)[: self.tables.size.ndim], list(self.targets)  # [A] or [R, A]
        by_client = np.asarray(rows).reshape(*leading, -1)

        def read(tree: Any, task: int = 0, tasks: int = 1) -> Any:
            task_rows = by_client[..., task::tasks, :].reshape(*leading[:-1], -1)

            def one(array: np.ndarray) -> Array:
                return place((*task_rows.shape, *array.shape[1:]), lambda part: array[task_rows[part]])

            return jax.tree.map(one, tree)

        return self.tables.replace(
            client_images=read(self.images),
            client_labels=read(self.labels),
            client_targets={name: read(self.targets[name], task, len(tasks)) for task, name in enumerate(tasks)},
            streamed=reads,
        )


def tables(federation: Federation | HostFederation) -> Federation:
    """Returns the tables of rows by client, without the clients' images if these are in host memory."""
    return federation.tables if isinstance(federation, HostFederation) else federation


def build_federations(
    dataset: Dataset,
    partitions: Sequence[Partition],
    residency: str,
    all_labels: bool = False,
    tasks: Sequence[str] = (),
) -> Sequence[Federation | HostFederation]:
    """Arranges the training set once for several trials, each with its own split.

    An image that is labeled in one trial may be unlabeled in another. With several trials on the device, one copy of
    the images therefore serves the servers and clients of all trials.

    Args:
      dataset: the training set.
      partitions: R splits, with equal numbers of labeled images and of clients.
      residency: 'device' or 'host'.
      all_labels: clients know the labels of all their images, so the labeled tables equal the unlabeled ones.
      tasks: dense tasks, whose targets clients have.

    Returns:
      R federations, with tables of equal shapes. `server_images` and `server_labels` are the same arrays in all of
      them; on the device, so are `client_images` and `client_labels`.

    Raises:
      UserError: `all_labels` is set without `tasks`, and some of the clients' labels are unknown.
    """
    if all_labels and not tasks and (unknown := count_unknown(dataset, partitions)):
        raise UserError(
            f'config.data.client_labels=-1 needs the labels of all images at the clients, but those of {unknown:,} '
            f'images of {dataset.name} are unknown; give a number of labels'
        )
    on_host = residency == 'host'
    server = np.unique(np.concatenate([p.server_index for p in partitions]))  # rows of the training set
    clients = np.unique(np.concatenate([r for p in partitions for r in (*p.client_index, *p.client_labeled_index)]))
    if on_host:
        clients = clients[:0]
    elif len(partitions) > 1:
        server = clients = np.union1d(server, clients)
    at_server = _arrays(dataset, server)
    at_clients = at_server if clients is server else _arrays(dataset, clients)

    targets = {name: dataset.targets[name].train for name in tasks}
    client_targets = {} if on_host else jax.tree.map(lambda array: jax.device_put(array[clients]), targets)

    def place(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [part if on_host else np.searchsorted(clients, part) for part in parts]

    tables = _pad([place(p.client_index) for p in partitions])
    labeled_tables = tables if all_labels else _pad([place(p.client_labeled_index) for p in partitions])
    federations = [
        Federation(
            *at_server,
            *at_clients,
            server_index=jax.device_put(np.searchsorted(server, partition.server_index).astype(np.int32)),
            index=jax.device_put(index),
            size=jax.device_put(size),
            labeled_index=jax.device_put(labeled_index),
            labeled_size=jax.device_put(labeled_size),
            client_targets=client_targets,
        )
        for partition, (index, size), (labeled_index, labeled_size) in zip(
            partitions, tables, labeled_tables, strict=True
        )
    ]
    if on_host:
        labels = dataset.train_labels.astype(np.int32, copy=False)
        return [HostFederation(each, dataset.train_images, labels, targets) for each in federations]
    return federations


def _arrays(dataset: Dataset, rows: np.ndarray) -> tuple[Array, Array]:
    """Puts images [n, H, W, C] and labels [n] of some training rows on the device.

    By `device_put`, as `jnp.asarray` compiles a small program for every shape.
    """
    return jax.device_put(dataset.train_images[rows]), jax.device_put(dataset.train_labels[rows].astype(np.int32))


def _pad(trials: list[list[np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pads each trial's N parts with zeros to the longest of all trials: int32 tables [N, longest] and lengths [N]."""
    width = max(len(part) for parts in trials for part in parts)
    tables = []
    for parts in trials:
        size = np.array([len(part) for part in parts], np.int32)
        index = np.zeros((len(parts), width), np.int32)
        index[np.arange(width) < size[:, None]] = np.concatenate(parts)
        tables.append((index, size))
    return tables


# --- the clients of a round


def draw_cohort(seed: int, round_index: int, num_clients: int, num_active: int, tasks: int = 1) -> np.ndarray:
    """Draws the active clients of a round, uniformly without replacement; with T tasks, equally many for each.

    Client n works on task n mod T.

    Args:
      seed: of the run.
      round_index: the round.
      num_clients: N.
      num_active: A.
      tasks: T.

    Returns:
      [A] int32: the lowest client of each task, then the second of each, and so on; ascending if T is 1.
    """
    generator = rng.host(seed, 'cohort', round_index)
    clients, active = num_clients // tasks, num_active // tasks
    drawn = [np.sort(generator.choice(clients, active, replace=False, shuffle=False)) for _ in range(tasks)]
    return (np.stack(drawn, axis=1) * tasks + np.arange(tasks)).ravel().astype(np.int32)


def make_cohort(
    ids: np.ndarray, participations: np.ndarray, padded_size: int = 0, failed: np.ndarray | None = None, tasks: int = 1
) -> Cohort:
    """Builds the Cohort of a round from its clients.

    Args:
      ids: [A] clients.
      participations: [N] rounds in which each client took part before this one.
      padded_size: size to pad to, with weight 0 for copies of the last client (of the last T clients with T tasks).
      failed: [A] bool, clients with weight 0; the others have weight 1.
      tasks: T.
    """
    padding = max(padded_size - len(ids), 0)
    padded = np.concatenate([ids, np.tile(ids[-tasks:], padding // tasks)])
    valid = np.arange(len(padded)) < len(ids)
    if failed is not None:
        valid &= ~np.pad(failed, (0, padding))
    # NumPy arrays: creating three device arrays in every round of every trial would cost time
    fields: Any = padded.astype(np.int32), valid.astype(np.float32), participations[padded].astype(np.int32)
    return Cohort(*fields)
