"""The data of an experiment as the arrays that a jitted round takes.

With residency 'device' all images lie on the device, once. With 'host' the clients' images stay in host memory, or
on disk behind a memory map, and each round gets the rows that it is going to draw.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from semisfl_jax.data.dataset import Dataset
from semisfl_jax.data.partition import Partition
from semisfl_jax.errors import UserError
from semisfl_jax.types import Federation

RESIDENCIES = ('device', 'host')


@dataclasses.dataclass(frozen=True, eq=False)
class HostFederation:
    """Client images in host memory.

    `layout` has everything but the images: its `client_images` are [0, H, W, C], and its `index` and
    `labeled_index` hold rows of `images`, so that `sampling.client_rows` of it are the rows that a round will read.
    """

    layout: Federation
    images: np.ndarray  # [n, H, W, C] uint8, the training set
    labels: np.ndarray  # [n] int32

    def streamed(self, rows) -> Federation:
        """The federation of one round.

        Args:
          rows: [A, ...] rows of `images`, for each active client in the order in which it reads them.

        Returns:
          A Federation with `streamed` set and client_images [rows.size, H, W, C].
        """
        rows = np.asarray(rows).reshape(-1)
        return self.layout.replace(
            client_images=jnp.asarray(self.images[rows]),
            client_labels=jnp.asarray(self.labels[rows]),
            streamed=True,
        )


def build_federation(dataset: Dataset, partition: Partition, residency: str) -> Federation | HostFederation:
    """Lays out the training set for the rounds.

    Args:
      dataset: the data set.
      partition: its split.
      residency: 'device' or 'host'. Both give the same images for the same draws.

    Returns:
      A Federation, whose `client_images` are the rows that clients hold, or a HostFederation.

    Raises:
      UserError: unknown residency.
    """
    if residency not in RESIDENCIES:
        raise UserError(f"config.data.residency is '{residency}': use {' or '.join(map(repr, RESIDENCIES))}")
    on_host = residency == 'host'
    rows = np.concatenate([*partition.client_index, *partition.client_labeled_index])
    held = rows[:0] if on_host else np.sort(rows)
    place = np.arange(len(dataset.train_labels), dtype=np.int32)  # training row -> row of client_images
    if not on_host:
        place[held] = np.arange(len(held))
    index, size = _pad([place[r] for r in partition.client_index])
    labeled_index, labeled_size = _pad([place[r] for r in partition.client_labeled_index])
    federation = Federation(
        server_images=jnp.asarray(dataset.train_images[partition.server_index]),
        server_labels=jnp.asarray(dataset.train_labels[partition.server_index]),
        client_images=jnp.asarray(dataset.train_images[held]),
        client_labels=jnp.asarray(dataset.train_labels[held]),
        index=jnp.asarray(index),
        size=jnp.asarray(size),
        labeled_index=jnp.asarray(labeled_index),
        labeled_size=jnp.asarray(labeled_size),
    )
    return HostFederation(federation, dataset.train_images, dataset.train_labels) if on_host else federation


def _pad(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """[N, longest] int32, zeros behind each part, and the lengths [N] int32."""
    size = np.array([len(part) for part in parts], np.int32)
    index = np.zeros((len(parts), size.max(initial=0)), np.int32)
    index[np.arange(index.shape[1]) < size[:, None]] = np.concatenate(parts)
    return index, size
