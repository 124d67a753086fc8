"""The split of the training images between the server (labeled) and every client (Section V; docs/ledger.md).

A partition is disjoint, and complete except for the labeled images that `federation.ignored_labeled` 'dropped'
discards. It is a function of the configuration alone: the only source of randomness here is
`config.data.partition_seed`, or `config.seed` if that is -1.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from semisfl_jax import rng
from semisfl_jax.data.apportion import largest_remainder, level
from semisfl_jax.data.dataset import Dataset
from semisfl_jax.errors import UserError

LABELED_SPLITS = ('natural', 'balanced')
IGNORED_LABELED = ('dropped', 'unlabeled')  # fate of the clients' labeled images with mu = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Rows of the training set, always in ascending order, and the settings that the split was made from.

    Every client has at least one row in `client_index`, but may have none in `client_labeled_index`.
    """

    dataset: str  # name of the data set
    checksum: str  # of the data set
    settings: dict  # that the split was made from, JSON types
    server_index: np.ndarray  # [L] int32, labeled, at the server
    client_index: tuple[np.ndarray, ...]  # N arrays int32, used without labels
    client_labeled_index: tuple[np.ndarray, ...]  # N arrays int32, used with their labels

    @property
    def num_clients(self) -> int:
        return len(self.client_index)

    @functools.cached_property
    def content_hash(self) -> str:
        """SHA-256, in hex, over every field. Equal hashes mean equal splits of equal data."""
        digest = hashlib.sha256(json.dumps([self.dataset, self.checksum, self.settings], sort_keys=True).encode())
        for rows in (self.server_index, *self.client_index, *self.client_labeled_index):
            digest.update(f'|{len(rows)}|'.encode() + rows.astype('<i4').tobytes())
        return digest.hexdigest()


def settings(config) -> dict:
    """The settings of a configuration that determine a partition, in JSON types.

    Those about labeled images at the clients are present only if there are such images. If all images are dealt to
    clients that know their labels, no image is set aside as labeled: `num_labeled` is 0.
    """
    fed, count = config.federation, config.data.client_labels
    if count > 0:
        of_labels = {'labeled_partition': fed.labeled_partition} if fed.mu else {'ignored_labeled': fed.ignored_labeled}
    else:
        of_labels = {}
    rules = {fed.partition, of_labels.get('labeled_partition', 'same')}
    return {
        'seed': config.seed if config.data.partition_seed == -1 else config.data.partition_seed,
        'num_labeled': 0 if count == -1 and config.k_s == 0 else config.data.num_labeled,
        'labeled_split': config.data.labeled_split,
        'client_labels': 0 if count == -1 else count,  # -1 moves no image
        'use_client_labels': fed.mu > 0,
        'num_clients': fed.num_clients,
        'partition': fed.partition,
        'alpha': None if rules <= {'uniform', 'same'} else float(fed.alpha),
        **of_labels,
    }


def make_partition(dataset: Dataset, config) -> Partition:
    """Splits the training set between the server and the clients.

    The server gets `num_labeled` - `client_labels` labeled images; the clients share `client_labels` labeled ones
    and all remaining images without labels. 'uniform' deals every class equally. 'dirichlet' draws Dir(alpha) over the
    classes once per client, p [N, K], and gives client i the share p_ic / sum_j p_jc of class c, so all data is used
    and clients differ in size. A client left with nothing gets one image of the largest client. The labeled images of
    the clients follow the same shares, or a separate rule (`labeled_partition`). With mu = 0 their labels are
    ignored: the images are discarded, or dealt among the unlabeled ones (`ignored_labeled`). `client_labels` -1
    splits as 0 does, but clients know the labels of the images they hold (`federation.build_federations`); without a
    server phase (k_s = 0) they also get the server's images.

    Args:
      dataset: the data set.
      config: the whole configuration; reads `seed`, `data` and `federation`, and whether `k_s` is 0.

    Returns:
      The partition, always the same for the same data and settings.

    Raises:
      UserError: invalid settings, or settings that the data set cannot satisfy.
    """
    chosen = settings(config)
    _check_settings(chosen, config)
    groups = _shuffled_classes(dataset, chosen['seed'])  # K arrays, and one of unknown labels
    sizes = np.array([len(rows) for rows in groups])
    labeled = np.append(_labeled_counts(dataset, chosen, sizes[:-1]), 0)
    at_clients = largest_remainder(labeled, chosen['client_labels'])

    server, with_labels, pool = [], [], []
    for rows, total, client in zip(groups, labeled, at_clients, strict=True):
        server.append(rows[: total - client])
        with_labels.append(rows[total - client : total])
        pool.append(rows[total:])
    if not chosen['use_client_labels']:
        if chosen.get('ignored_labeled') == 'unlabeled':
            pool = [np.concatenate(pair) for pair in zip(with_labels, pool, strict=True)]
        with_labels = [rows[:0] for rows in with_labels]
    rule = chosen['partition']
    of_labels = chosen.get('labeled_partition', 'same')

    return Partition(
        dataset=dataset.name,
        checksum=dataset.checksum,
        settings=chosen,
        server_index=np.sort(np.concatenate(server)).astype(np.int32),
        client_index=_deal(pool, rule, chosen, leave_none_empty=True),
        client_labeled_index=_deal(with_labels, rule if of_labels == 'same' else of_labels, chosen, False),
    )


def describe(partition: Partition, labels: np.ndarray) -> np.ndarray:
    """The number of unlabeled images of each class that every client holds.

    Args:
      partition: the partition.
      labels: [n] of the training set, -1 where unknown; those are not counted.

    Returns:
      [N, K] int64.
    """
    classes = int(labels.max()) + 1
    held = [labels[rows] for rows in partition.client_index]
    return np.stack([np.bincount(client_labels[client_labels >= 0], minlength=classes) for client_labels in held])


def check_counts(num_clients: int, num_active: int) -> None:
    """Raises UserError unless 1 <= num_active <= num_clients."""
    if num_clients < 1:
        raise UserError(f'config.federation.num_clients is {num_clients}: at least one client is needed')
    if not 1 <= num_active <= num_clients:
        raise UserError(
            f'config.federation.num_active is {num_active}: it must lie between 1 and num_clients = {num_clients}'
        )


def _check_settings(chosen: dict, config) -> None:
    """Checks everything that can be checked without the data."""
    federation, labeled = config.federation, config.data.num_labeled
    check_counts(chosen['num_clients'], federation.num_active)
    for key, allowed, value in (
        ('federation.partition', PARTITIONS, chosen['partition']),
        ('federation.labeled_partition', LABELED_PARTITIONS, federation.labeled_partition),
        ('federation.ignored_labeled', IGNORED_LABELED, federation.ignored_labeled),
        ('data.labeled_split', LABELED_SPLITS, chosen['labeled_split']),
    ):
        if value not in allowed:
            raise UserError(f"config.{key} is '{value}': use {' or '.join(map(repr, allowed))}")
    if 'dirichlet' in (chosen['partition'], chosen.get('labeled_partition')) and not 0 < chosen['alpha'] < float('inf'):
        raise UserError(f'config.federation.alpha is {federation.alpha}: a Dirichlet distribution needs alpha > 0')
    if federation.mu < 0:
        raise UserError(f'config.federation.mu is {federation.mu}: use 0 or more unlabeled images per labeled one')
    if labeled < 1:
        raise UserError(f'config.data.num_labeled is {labeled}: the server needs labeled images')
    if not 0 <= chosen['client_labels'] <= labeled:
        raise UserError(
            f'config.data.client_labels is {chosen["client_labels"]}: it must lie between 0 and num_labeled = {labeled}'
        )


def _shuffled_classes(dataset: Dataset, seed: int) -> list[np.ndarray]:
    """K + 1 arrays: the rows of every class, and those of unknown label, each in random order."""
    generator = rng.host(seed, 'partition', 'order')
    labels = dataset.train_labels
    return [generator.permutation(np.flatnonzero(labels == k)) for k in (*range(dataset.num_classes), -1)]


def _labeled_counts(dataset: Dataset, chosen: dict, sizes: np.ndarray) -> np.ndarray:
    """[K] labeled images per class, from class sizes [K]; sums to num_labeled."""
    wanted, available = chosen['num_labeled'], int(sizes.sum())
    if wanted > available:
        raise UserError(
            f"config.data.num_labeled is {wanted}: data set '{dataset.name}' has {available} training images with a "
            'label, use at most that many'
        )
    if chosen['labeled_split'] == 'natural' or not wanted:
        return largest_remainder(sizes, wanted)
    if wanted < dataset.num_classes:
        raise UserError(
            f"config.data.num_labeled is {wanted}: labeled_split 'balanced' needs at least one label for each of the "
            f'{dataset.num_classes} classes'
        )
    counts = largest_remainder(np.ones(len(sizes), np.int64), wanted)
    if short := np.flatnonzero(counts > sizes).tolist():
        k = short[0]
        raise UserError(
            f"config.data.num_labeled is {wanted}: labeled_split 'balanced' needs {counts[k]} images of class {k}, "
            f"which has {sizes[k]}; use fewer labels or 'natural'"
        )
    return counts


def _deal(groups: list[np.ndarray], rule: str, chosen: dict, leave_none_empty: bool) -> tuple[np.ndarray, ...]:
    """Deals K + 1 shuffled groups to N clients by a rule of PARTITIONS: N ascending int32 arrays."""
    clients = chosen['num_clients']
    sizes = np.array([len(rows) for rows in groups])
    if leave_none_empty and sizes.sum() < clients:
        raise UserError(
            f'config.federation.num_clients={clients}: only {sizes.sum()} unlabeled images are left for them; '
            'use fewer clients or fewer labels'
        )
    counts = PARTITIONS[rule](sizes, chosen)
    if counts.shape != (clients, len(sizes)) or (counts < 0).any() or (counts.sum(axis=0) != sizes).any():
        raise ValueError(f"partition '{rule}' does not assign every image exactly once")
    if leave_none_empty:
        _fill_empty(counts)
    rows = np.concatenate(groups)
    owner = np.concatenate([np.repeat(np.arange(clients), column) for column in counts.T])
    rows = rows[np.lexsort((rows, owner))].astype(np.int32)
    return tuple(np.split(rows, np.cumsum(counts.sum(axis=1))[:-1]))


def _uniform_counts(sizes: np.ndarray, chosen: dict) -> np.ndarray:
    """[N, K + 1] images per client and group, columns summing to `sizes` [K + 1]."""
    return level(sizes, chosen['num_clients'])


def _dirichlet_counts(sizes: np.ndarray, chosen: dict) -> np.ndarray:
    """[N, K + 1] images per client and group, columns summing to `sizes` [K + 1]."""
    if sizes[-1]:
        raise UserError(
            f"config.federation.partition is 'dirichlet', but the labels of {sizes[-1]} training images are unknown, "
            "so their classes cannot be split unevenly: use 'uniform'"
        )
    clients, classes = chosen['num_clients'], len(sizes) - 1
    share = rng.host(chosen['seed'], 'partition', 'dirichlet').dirichlet(np.full(classes, chosen['alpha']), clients)
    columns = [largest_remainder(share[:, k], sizes[k]) for k in range(classes)]
    return np.stack([*columns, np.zeros(clients, np.int64)], axis=1)


# Name -> rule: sizes [K + 1] of the classes and of the images of unknown class, `settings` -> counts [N, K + 1]
PARTITIONS: dict[str, Callable[[np.ndarray, dict], np.ndarray]] = {
    'uniform': _uniform_counts,
    'dirichlet': _dirichlet_counts,
}
# Rules by which the labeled images of the clients are dealt: one of PARTITIONS, or the 'same' as for unlabeled ones
LABELED_PARTITIONS: Mapping[str, Any] = ChainMap({'same': None}, PARTITIONS)


def _fill_empty(counts: np.ndarray) -> None:
    """Gives every empty client in counts [N, K] one image of the largest client, from that client's largest class."""
    totals = counts.sum(axis=1)
    for empty in np.flatnonzero(totals == 0):
        largest = totals.argmax()
        k = counts[largest].argmax()
        counts[largest, k] -= 1
        counts[empty, k] += 1
        totals[largest] -= 1
        totals[empty] = 1
