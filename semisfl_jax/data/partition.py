"""The split of the training images between the server (labeled) and every client (Section V; docs/ledger.md).

Except with dense tasks (below), a partition is disjoint. It is also complete, except for the labeled images that
`federation.ignored_labeled` 'dropped' discards, the images that `data.num_unlabeled` leaves out, and validation images
(`data.num_validation`).

`settings` returns the settings of a split; `partitioners` has the rules. A partition is a function of the configuration
alone: the only source of randomness is `config.data.partition_seed`, or `config.seed` if that is -1.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import tasks
from semisfl_jax.base.errors import UserError, warn
from semisfl_jax.core import rng
from semisfl_jax.data import partitioners
from semisfl_jax.data.apportion import largest_remainder
from semisfl_jax.data.dataset import SPLITS, Dataset, blocks
from semisfl_jax.tasks import IGNORED, PARTS

Rows = tuple[np.ndarray, ...]  # of every client, N ascending int32 arrays
# Settings that are stored only where used, with the value that their absence means
UNUSED = {'labeled_alpha': 0.0, 'num_unlabeled': 0, 'images_of_tasks': [], 'mismatch': -1.0, 'num_validation': 0}


def settings(config: ConfigDict) -> dict:
    """Returns the settings of a configuration that determine a partition, in JSON types.

    Settings about labeled images at the clients are present only if there are such images, and those of a rule only if
    it is used. If clients get all images and know their labels (`client_labels` -1 without a server phase), no image is
    set aside as labeled, and `num_labeled` is 0. The exception is a separate rule for labeled images
    (`labeled_partition`): that rule splits `num_labeled` images, and `all_labels` says that the labels of the remaining
    ones are known, too.
    """
    fed, count = config.federation, config.data.client_labels
    all_at_clients = count == -1 and config.k_s == 0
    apart = all_at_clients and fed.labeled_partition != 'same'  # labeled images have their own rule
    label_settings: dict[str, Any] = {}
    if apart:
        label_settings = {'labeled_partition': fed.labeled_partition, 'all_labels': True}
    elif count > 0:
        ignored = {'ignored_labeled': fed.ignored_labeled}
        label_settings = {'labeled_partition': fed.labeled_partition} if fed.mu else ignored
    rule, labeled_rule = fed.partition, label_settings.get('labeled_partition', 'same')
    own_alpha = labeled_rule not in partitioners.WITHOUT_ALPHA and fed.labeled_alpha != 0
    needs_alpha = {rule} if own_alpha else {rule, labeled_rule}
    used: dict[str, Any] = {'labeled_alpha': float(fed.labeled_alpha)} if own_alpha else {}
    if rule == partitioners.SIZED:
        used |= {'min_images': fed.min_images, 'max_images': fed.max_images}
    if labeled_rule == partitioners.SIZED:
        used['min_labeled'] = fed.min_labeled
    if 'classes' in (rule, labeled_rule):
        used['classes_per_client'] = fed.classes_per_client
    if config.data.num_validation:
        used['num_validation'] = config.data.num_validation
    if config.data.images_of_tasks:
        used['images_of_tasks'] = list(config.data.images_of_tasks)
    elif config.data.num_unlabeled:
        used['num_unlabeled'] = config.data.num_unlabeled
    if fed.mismatch != UNUSED['mismatch']:
        used['mismatch'] = float(fed.mismatch)
    if config.data.tasks:
        used |= {'tasks': list(config.data.tasks), 'task_images': config.data.task_images}
    return {
        'seed': config.seed if config.data.partition_seed == -1 else config.data.partition_seed,
        'num_labeled': 0 if all_at_clients and not apart else config.data.num_labeled,
        'labeled_split': config.data.labeled_split,
        'client_labels': config.data.num_labeled if apart else 0 if count == -1 else count,  # -1 moves no image
        'use_client_labels': fed.mu > 0 or apart,
        'num_clients': fed.num_clients,
        'partition': rule,
        'alpha': None if needs_alpha <= set(partitioners.WITHOUT_ALPHA) else float(fed.alpha),
        **label_settings,
        **used,
    }


def faults(config: ConfigDict) -> Iterator[str]:
    """Yields conflicts between keys about clients' images that show without data, each with a remedy."""
    fed, data, tasks = config.federation, config.data, len(config.data.tasks)
    if data.eval_split == 'validation' and not data.num_validation:
        yield "data.eval_split='validation' needs images that are held out; use data.num_validation=1000, for example"
    if 0 < fed.max_images < fed.min_images:
        yield f'federation.min_images={fed.min_images} is above federation.max_images={fed.max_images} (0: none)'
    shared = tasks if data.task_images == 'shared' else 0  # the number applies to each task
    if 0 < data.num_unlabeled < fed.num_clients // max(1, shared):
        yield (
            f'data.num_unlabeled={data.num_unlabeled} is less than federation.num_clients={fed.num_clients}'
            f'{f" / {shared} tasks" if shared else ""}; every client needs an image, use more, or 0 for all'
        )
    yield from _faults_of_counts(config)
    if tasks and fed.labeled_partition != 'same':
        rule = f"federation.labeled_partition='{fed.labeled_partition}'"
        yield f"{rule} splits labeled images by class, and images of dense tasks have no class: use 'same'"
    if fed.partition == partitioners.NATURAL:
        used = UNUSED | settings(config)
        for key, unused in (('labeled_partition', 'same'), ('mismatch', UNUSED['mismatch'])):
            if (value := used.get(key, unused)) != unused:
                yield f"federation.{key}={value!r} moves images, but clients have their own (partition='natural')"
    if -1 < fed.mismatch < 0:
        yield f'federation.mismatch={fed.mismatch}: use a share in [0, 1], or -1 for none'
    if fed.mismatch >= 0 and not (data.client_labels > 0 and fed.mu > 0):
        yield (
            f'federation.mismatch={fed.mismatch} needs labels at the clients: use data.client_labels and '
            'federation.mu above 0, or -1'
        )
    for key, value in (('num_clients', fed.num_clients), ('num_active', fed.num_active)):
        if tasks and value % tasks:
            yield f'federation.{key}={value} cannot be shared equally by {tasks} tasks; use a multiple of {tasks}'


def _faults_of_counts(config: ConfigDict) -> Iterator[str]:
    """Yields conflicts in the numbers of images per task."""
    counts, names = config.data.images_of_tasks, config.data.tasks
    what = f'data.images_of_tasks={tuple(counts)}'
    if counts and len(counts) != len(names):
        yield f'{what} has {len(counts)} numbers for {len(names)} tasks; give one for each of data.tasks, in its order'
    if counts and config.data.task_images != 'shared':
        yield f"{what} needs data.task_images='shared': clients that divide the images cannot choose how many"
    for name, count in zip(names, counts, strict=False):
        clients = config.federation.num_clients // len(names)
        if type(count) is not int or count < 0 or 0 < count < clients:
            yield (
                f'{what} gives {name} {count!r} images for {clients} clients, each of which needs one; '
                f'use {clients} or more, or 0 for all'
            )


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Rows of the training set, always in ascending order, and the settings that the split was made from.

    Every client has at least one row in `client_index`, but may have none in `client_labeled_index`.
    """

    dataset: str  # name of the data set
    checksum: str  # of the data set
    settings: dict  # of the split, in JSON types; {} if not from a configuration
    server_index: np.ndarray  # [L] int32, labeled, at the server
    client_index: tuple[np.ndarray, ...]  # N arrays int32, used without labels
    client_labeled_index: tuple[np.ndarray, ...] = ()  # N arrays int32, used with their labels; (): none
    validation_index: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))  # [V], held out

    def __post_init__(self) -> None:
        if not self.client_labeled_index:
            object.__setattr__(self, 'client_labeled_index', (np.zeros(0, np.int32),) * len(self.client_index))

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return len(self.client_index)

    @functools.cached_property
    def content_hash(self) -> str:
        """SHA-256, in hex, over every field. Equal hashes mean equal splits of equal data."""
        digest = hashlib.sha256(json.dumps([self.dataset, self.checksum, self.settings], sort_keys=True).encode())
        held_out = [self.validation_index] if len(self.validation_index) else []
        for rows in (self.server_index, *self.client_index, *self.client_labeled_index, *held_out):
            digest.update(f'|{len(rows)}|'.encode() + np.asarray(rows, '<i4').tobytes())
        return digest.hexdigest()


def make_partition(dataset: Dataset, config: ConfigDict) -> Partition:
    """Splits the training set between the server and the clients.

    First, `num_validation` images are held out (`draw_validation`). The server gets `num_labeled` - `client_labels`
    labeled images. The clients share `client_labels` labeled images and, by a rule of `PARTITIONS`, all remaining
    images without their labels, or `num_unlabeled` of them. A client left without unlabeled images gets one from the
    largest client.

    The clients' labeled images follow the same shares or classes, or a rule with a draw of its own
    (`labeled_partition`). With `mismatch`, the rule only decides how many unlabeled images a client gets; their classes
    depend on the classes of its labeled images. With mu = 0 the clients' labels are ignored: their images are
    discarded, or split along with the unlabeled ones (`ignored_labeled`).

    `client_labels` -1 splits as 0 does, but clients know the labels of the images they hold. Without a server phase
    (k_s = 0) they also get the server's images, by `labeled_partition` if that is not 'same'.

    With dense tasks (`data.tasks`), every task has its own split, of as many images as `images_of_tasks` says; a
    smaller number gives a task a subset of the images that a larger one would.

    The same data and settings always give the same partition.

    Args:
      dataset: the data set.
      config: a whole configuration, as `config.check` accepts it.

    Raises:
      UserError: the settings are invalid, or the data set cannot satisfy them.
    """
    chosen = settings(config)
    held_out = draw_validation(dataset, chosen.get('num_validation', 0), chosen['seed'])
    if len(held_out):  # no class, so nobody gets them
        labels = dataset.train_labels.astype(np.int32)
        labels[held_out] = _HELD_OUT
        dataset = dataclasses.replace(dataset, train_labels=labels)
    partition = _split_tasks(dataset, chosen) if 'tasks' in chosen else _make(dataset, chosen)
    return dataclasses.replace(partition, validation_index=held_out)


def _make(dataset: Dataset, chosen: dict) -> Partition:
    """Makes a partition from checked settings."""
    generator = rng.host(chosen['seed'], 'partition', 'order')
    classes = (*range(dataset.num_classes), -1)  # K, and unknown
    groups = [generator.permutation(np.flatnonzero(dataset.train_labels == k)) for k in classes]
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
    split = _keep_clients if chosen['partition'] == partitioners.NATURAL else _by_rule
    client_index, client_labeled_index = split(dataset, pool, with_labels, chosen)
    if chosen.get('all_labels'):
        client_index = tuple(np.sort(np.concatenate(p)) for p in zip(client_index, client_labeled_index, strict=True))
        client_labeled_index = tuple(rows[:0] for rows in client_labeled_index)
    return Partition(
        dataset=dataset.name,
        checksum=dataset.checksum,
        settings=chosen,
        server_index=np.sort(np.concatenate(server)).astype(np.int32),
        client_index=client_index,
        client_labeled_index=client_labeled_index,
    )


def _by_rule(
    dataset: Dataset, pool: list[np.ndarray], with_labels: list[np.ndarray], chosen: dict
) -> tuple[Rows, Rows]:
    """Splits unlabeled and labeled rows, in K + 1 groups, by the rules of the settings."""
    remaining, used = _unlabeled_sizes(pool, chosen)
    dealt = partitioners.counts(chosen['partition'], used, partitioners.settings_of(chosen))
    labels = np.array([len(rows) for rows in with_labels])
    if (labeled_rule := chosen.get('labeled_partition', 'same')) == 'same':
        labeled_counts = partitioners.same_shares_as_unlabeled(chosen['partition'], labels, chosen, dealt)
    else:
        labeled_counts = partitioners.counts(labeled_rule, labels, partitioners.settings_of(chosen, labeled=True))
    dealt = partitioners.fill_empty(dealt)
    if 'mismatch' in chosen:
        dealt = partitioners.compose_mismatch(dealt.sum(axis=1), labeled_counts, remaining, chosen['mismatch'])
    return _assign(pool, dealt), _assign(with_labels, labeled_counts)


def _keep_clients(
    dataset: Dataset, pool: list[np.ndarray], with_labels: list[np.ndarray], chosen: dict
) -> tuple[Rows, Rows]:
    """Leaves unlabeled and labeled rows, in K + 1 groups, with the clients that the data give them."""
    rule, clients = f"config.federation.partition='{partitioners.NATURAL}'", chosen['num_clients']
    if (owners := dataset.client_ids) is None:
        raise UserError(f'{rule} needs data that name their clients: sfl.data.from_arrays(…, client_ids=…)')
    if (has := owners.max() + 1) != clients:
        raise UserError(f"config.federation.num_clients={clients}, but data set '{dataset.name}' has {has}; use that")
    _, used = _unlabeled_sizes(pool, chosen)
    rows = np.concatenate([group[:count] for group, count in zip(pool, used, strict=True)])
    labeled = np.concatenate(with_labels)
    if len(empty := np.setdiff1d(owners, owners[rows])):
        raise UserError(
            f"{rule}: client {empty[0]} has no unlabeled image left besides the server's and the held-out ones; "
            'use fewer (data.num_labeled, data.num_validation), or leave such clients out of the data'
        )
    return _by_owner(rows, owners[rows], clients), _by_owner(labeled, owners[labeled], clients)


def describe(partition: Partition, labels: np.ndarray, labeled: bool = False) -> np.ndarray:
    """Counts the images of each class that every client holds; images of unknown class are not counted.

    Args:
      partition: the partition.
      labels: [n], of the training set, -1 where unknown.
      labeled: count the images that clients use with their labels, rather than the others.

    Returns:
      [N, K] int64.
    """
    classes = int(labels.max()) + 1
    held = [labels[rows] for rows in (partition.client_labeled_index if labeled else partition.client_index)]
    return np.stack([np.bincount(client_labels[client_labels >= 0], minlength=classes) for client_labels in held])


def _unlabeled_sizes(pool: list[np.ndarray], chosen: dict) -> tuple[np.ndarray, np.ndarray]:
    """Counts the unlabeled images of K + 1 groups, [K + 1], and those that the clients get, the same share of each."""
    remaining = np.array([len(rows) for rows in pool])
    available = int(remaining.sum())
    wanted = chosen.get('num_unlabeled', available)
    for key, value in (('federation.num_clients', chosen['num_clients']), ('data.num_unlabeled', wanted)):
        if value <= available:
            continue
        if task := chosen.get('task'):
            key, what = (key, 'clients') if 'clients' in key else ('data.images_of_tasks', 'images')
            use = f'{available:,} images have a truth for it; use fewer'
            raise UserError(f'config.{key} gives {task} {value:,} {what}, but {use}')
        advice = 'use fewer, or fewer labels' if available else 'use fewer labels'
        raise UserError(f'config.{key}={value}: only {available:,} unlabeled images are left; {advice}')
    return remaining, largest_remainder(remaining, wanted)


def _labeled_counts(dataset: Dataset, chosen: dict, sizes: np.ndarray) -> np.ndarray:
    """Returns the number of labeled images per class [K], which sum to num_labeled, from class sizes [K]."""
    wanted, available = chosen['num_labeled'], int(sizes.sum())
    balanced = chosen['labeled_split'] == 'balanced' and wanted > 0
    counts = largest_remainder(np.ones(len(sizes), np.int64) if balanced else sizes, min(wanted, available))
    short, other = np.flatnonzero(counts > sizes), "use another number or 'natural'"
    if wanted > available:
        left = ' beside those of data.num_validation' if 'num_validation' in chosen else ''
        fault = f"data set '{dataset.name}' has {available} training images with a label{left}; use fewer"
    elif balanced and wanted < len(sizes):
        fault = f"labeled_split 'balanced' needs at least one label for each of the {len(sizes)} classes; {other}"
    elif len(short):
        k = short[0]
        fault = f"labeled_split 'balanced' needs {counts[k]} images of class {k}, which has {sizes[k]}; {other}"
    else:
        return counts
    raise UserError(f'config.data.num_labeled={wanted}: {fault}')


def _assign(groups: list[np.ndarray], counts: np.ndarray) -> Rows:
    """Gives the first images of K + 1 shuffled groups to N clients by counts [N, K + 1]."""
    used = counts.sum(axis=0)
    rows = np.concatenate([group[:count] for group, count in zip(groups, used, strict=True)])
    owner = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    return _by_owner(rows, owner, len(counts))


def _by_owner(rows: np.ndarray, owner: np.ndarray, clients: int) -> Rows:
    """Splits rows by their owners, 0 .. clients - 1."""
    rows = rows[np.lexsort((rows, owner))].astype(np.int32)
    return tuple(np.split(rows, np.cumsum(np.bincount(owner, minlength=clients))[:-1]))


# --- dense tasks
#
# Of T tasks, client n works on task n mod T. With `data.task_images` 'shared', the clients of each task divide all
# images that have a truth for it, so clients of different tasks may hold the same image; with 'disjoint', all clients
# divide the images, and those without a truth for a client's task are left out.


def _split_tasks(dataset: Dataset, chosen: dict) -> Partition:
    """Makes the partition of several tasks from checked settings; raises UserError if a client gets no image."""
    names = chosen['tasks']
    rows = [rows_with_truth(dataset, name) for name in names]
    if chosen['task_images'] == 'disjoint':
        whole = _make(dataset, chosen)
        parts = [np.intersect1d(part, rows[n % len(names)]) for n, part in enumerate(whole.client_index)]
        if empty := [n for n, part in enumerate(parts) if not len(part)]:
            raise UserError(
                f"config.data.task_images='disjoint' leaves client {empty[0]} without an image that has a truth "
                f"for its task, {names[empty[0] % len(names)]}; use fewer clients, or 'shared'"
            )
        return dataclasses.replace(whole, client_index=tuple(part.astype(np.int32) for part in parts))
    by_task, counts = [], chosen.get('images_of_tasks', [0] * len(names))
    for name, known, count in zip(names, rows, counts, strict=True):
        seed = int(rng.host(chosen['seed'], 'task', name).integers(2**31))
        used = {'task': name} | ({'num_unlabeled': count} if count else {})
        partition = _make(
            dataclasses.replace(dataset, train_labels=dataset.train_labels[known]),
            {**chosen, **used, 'seed': seed, 'num_clients': chosen['num_clients'] // len(names)},
        )
        by_task.append([known[part].astype(np.int32) for part in partition.client_index])
    interleaved = tuple(part for parts in zip(*by_task, strict=True) for part in parts)
    unlabeled = tuple(part[:0] for part in interleaved)
    return dataclasses.replace(partition, settings=chosen, client_index=interleaved, client_labeled_index=unlabeled)


def check_tasks(dataset: Dataset, names: Sequence[str]) -> None:
    """Checks that a data set has the dense tasks, and that their maps hold valid numbers.

    Args:
      dataset: the data set.
      names: dense tasks.

    Raises:
      UserError: the data set lacks a task, or has maps with numbers that the task does not have, or with a single
        number beside 255, as in masks where 255 stands for a number.
    """
    for name in names:
        if name not in dataset.targets:
            has = ', '.join(dataset.targets) or 'none'
            raise UserError(f"config.data.tasks: data set '{dataset.name}' has no dense task '{name}'; it has {has}")
        target = dataset.targets[name]
        if name in PARTS:
            _check_objects(dataset, name)
            continue
        largest = tasks.make(name, target.outputs).largest
        for split, maps in zip(SPLITS, target[:2], strict=True):
            beyond = max(int(np.max(block, where=block != tasks.IGNORED, initial=0)) for block in blocks(maps))
            if largest is not None and beyond > largest:
                raise UserError(
                    f"data set '{dataset.name}', task '{name}': a map has the number {beyond}, but with "
                    f'{target.outputs} outputs the largest is {largest} ({tasks.IGNORED}: no truth); fix the reader'
                )
            if dataset.fake or min(int(block.min()) for block in blocks(maps)) != beyond:
                continue
            what = f"data set '{dataset.name}', task '{name}': all known pixels of {split} maps are {beyond}"
            if any((block == tasks.IGNORED).any() for block in blocks(maps)):
                raise UserError(
                    f'{what}, and others {tasks.IGNORED}, which means no truth; where that stands for what an image '
                    'shows, use another number, such as 1'
                )
            warn(f'{what}, so there is nothing to tell apart; scores that need both are n/a')


def _check_objects(dataset: Dataset, name: str) -> None:
    """Raises UserError if targets of objects have a class that the task does not have, or a box without area."""
    task, target = dataset.outline.task(name), dataset.targets[name]
    for split, parts in zip(SPLITS, target[:2], strict=True):
        limits = {'labels': task.outputs - task.stuff, 'semantic': task.stuff, 'visible': 2}
        for part in limits.keys() & parts.keys():
            void = IGNORED if part == 'semantic' else -1
            beyond = max(int(np.max(block, where=block != void, initial=0)) for block in blocks(parts[part]))
            if beyond > limits[part]:
                raise UserError(
                    f"data set '{dataset.name}', task '{name}': {split} {part} has the number {beyond}, above the "
                    f'largest, {limits[part]}; fix the reader'
                )
        if 'boxes' in parts:
            sides = parts['boxes'][..., 2:] - parts['boxes'][..., :2]
            if (empty := (parts['labels'] > 0) & ~(sides > 0).all(axis=-1)).any():
                raise UserError(
                    f"data set '{dataset.name}', task '{name}': {split} image {np.argmax(empty.any(axis=1))} has an "
                    'object whose box has no area; leave the object out'
                )


def _has_truth(name: str, targets: Any) -> np.ndarray:
    """Marks images [n] bool with a truth for a task: a known pixel, an object, or a person with a joint."""
    if name not in PARTS:
        return np.concatenate([(block != IGNORED).any(axis=(1, 2)) for block in blocks(targets)])
    marks = targets['visible' if name == 'persons' else 'labels'] > 0
    return marks.reshape(len(marks), -1).any(axis=1)


def rows_with_truth(dataset: Dataset, name: str) -> np.ndarray:
    """Returns the training rows that have a truth for a task, ascending.

    Args:
      dataset: the data set.
      name: a dense task.

    Raises:
      UserError: no row has one.
    """
    rows = np.flatnonzero(_has_truth(name, dataset.targets[name].train))
    if not len(rows):
        raise UserError(f"config.data.tasks: no training image of data set '{dataset.name}' has a truth for '{name}'")
    return rows


# --- validation images: training images held out for choosing settings (`data.num_validation`)
#
# With `data.eval_split` 'validation' they replace the test images in the data set of an experiment, so that no
# evaluation, diagnosis or plot can read a test image. With 'test' they are not used at all.

_HELD_OUT = -2  # replaces the label: neither a class nor the unknown class


def draw_validation(dataset: Dataset, number: int, seed: int) -> np.ndarray:
    """Draws the rows to hold out, stratified by class frequency, from a random stream of their own.

    Images of unknown class cannot be scored and are never drawn, except in sets with dense tasks, whose truths are
    maps: there they count as one more class.

    Args:
      dataset: the data set.
      number: V.
      seed: of the partition.

    Returns:
      [V] int32, ascending.

    Raises:
      UserError: there are fewer images.
    """
    classes = [*range(dataset.num_classes), *([-1] if dataset.targets else [])]
    groups = [np.flatnonzero(dataset.train_labels == k) for k in classes]
    sizes = np.array([len(rows) for rows in groups])
    if number > sizes.sum():
        raise UserError(
            f"config.data.num_validation={number}: data set '{dataset.name}' has {sizes.sum():,} training images to "
            'hold out; use fewer'
        )
    generator, taken = rng.host(seed, 'validation'), largest_remainder(sizes, number)
    parts = [generator.permutation(rows)[:count] for rows, count in zip(groups, taken, strict=True)]
    return np.sort(np.concatenate(parts)).astype(np.int32)


def evaluated(dataset: Dataset, rows: np.ndarray, split: str, tasks: Sequence[str] = ()) -> Dataset:
    """Returns the data set of an experiment, with validation images in place of the test images if asked for.

    Args:
      dataset: the data set.
      rows: [V] training rows of the validation images.
      split: 'test', which changes nothing, or 'validation'.
      tasks: dense tasks that need a truth.

    Raises:
      UserError: no validation image has a truth for one of the tasks.
    """
    if split == 'test':
        return dataset
    truths = {
        name: target._replace(test=jax.tree.map(lambda array: array[rows], target.train))
        for name, target in dataset.targets.items()
    }
    for name in tasks:
        if not _has_truth(name, truths[name].test).any():
            raise UserError(
                f"config.data.num_validation={len(rows)}: none of the validation images has a truth for task '{name}'; "
                'hold out more'
            )
        if name in PARTS:
            continue
        known = truths[name].test[truths[name].test != IGNORED]
        if known.min() == known.max():
            warn(f"all known pixels of the validation maps of task '{name}' are equal; scores that need both are n/a")
    return dataclasses.replace(
        dataset,
        test_images=dataset.train_images[rows],
        test_labels=dataset.train_labels[rows],
        targets=truths,
        test_sizes=None,  # training maps are as large as the images
        eval_split=split,
    )
