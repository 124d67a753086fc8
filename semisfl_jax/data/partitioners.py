"""The rules by which images are dealt to clients: how many of each class a client gets.

A rule takes the sizes [K + 1] of the classes, the last one being the images of unknown class, and `RuleSettings`; it
returns integer counts [N, K + 1] whose columns sum to the sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError, found
from semisfl_jax.data.apportion import controlled_rounding, even, largest_remainder, level

DRAWS = 10_000  # of 'dirichlet_class', before it gives up
SIZED = 'dirichlet_class'  # the rule that keeps `min_images`, `max_images` and `min_labeled`
WITHOUT_ALPHA = ('uniform', 'classes', 'same')


def counts(rule: str, sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """[N, K + 1] images per client and group by a rule of PARTITIONS, from the sizes [K + 1] of classes and the rest;
    UserError: the rule cannot deal these sizes, or returns something else than their counts.
    """
    dealt = np.asarray(PARTITIONS[rule](sizes.copy(), settings))
    shape, fault = (settings.num_clients, len(sizes)), ''
    if dealt.shape != shape or not np.issubdtype(dealt.dtype, np.integer):
        fault = found(dealt)
    elif (dealt < 0).any():
        fault = f'{dealt.min()}'
    elif (dealt.sum(axis=0) != sizes).any():
        fault = f'columns that sum to {dealt.sum(axis=0).tolist()}'
    if fault:
        raise UserError(
            f"{settings.key}='{rule}': the rule in data.PARTITIONS returns {fault}; return integers {list(shape)}, "
            f'0 or more, the columns of which sum to the sizes {sizes.tolist()}'
        )
    return dealt


def alike(rule: str, sizes: np.ndarray, chosen: Mapping[str, Any], unlabeled: np.ndarray) -> np.ndarray:
    """[N, K + 1] labeled images per client and group, with the shares or classes of the unlabeled ones.

    The rule is applied to them with the same random numbers; what 'dirichlet_class' draws depends on the sizes, so
    there every class follows the counts of the unlabeled images, [N, K + 1].
    """
    if rule != SIZED:
        return counts(rule, sizes, settings_of(chosen))
    return np.stack([largest_remainder(*column) for column in zip(unlabeled.T, sizes, strict=True)], axis=1)


def uniform(sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """Every class equally over all clients: sizes [K + 1] -> counts [N, K + 1]."""
    return level(sizes, settings.num_clients)


def dirichlet(sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """Dir(alpha) over the classes once per client, p [N, K]; client i gets the share p_ic / sum_j p_jc of class c."""
    _need_classes('dirichlet', sizes, settings)
    clients, classes = settings.num_clients, len(sizes) - 1
    share = _stream(settings, 'dirichlet').dirichlet(np.full(classes, settings.alpha), clients)
    columns = [largest_remainder(share[:, k], sizes[k]) for k in range(classes)]
    return np.stack([*columns, np.zeros(clients, np.int64)], axis=1)


def dirichlet_class(sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """Dir(alpha) over the clients once per class, as in the code of SemiFL (Diao et al., 2022) and of FedDure (Bai et
    al., 2024): classes in turn, and no share to a client that already holds its n / N of all n images (to the last one
    rounding may give an image).

    Drawn again until every client has at least `min_images` and, unless 0, at most `max_images`. A draw in which all
    clients with room for more have a share of 0 does not count either; in float64 this takes a very small alpha.
    UserError: there are images of unknown class, the limits cannot be met, or no draw met them.
    """
    _need_classes(SIZED, sizes, settings)
    clients, total = settings.num_clients, int(sizes.sum())
    least, most = settings.min_images, settings.max_images or total
    limits = f"{settings.key}='{SIZED}': {clients} clients with {least} to {most} of {total:,} images each"
    if not least * clients <= total <= most * clients:
        raise UserError(f'{limits} cannot be; use other limits (config.federation.min_images, max_images, min_labeled)')
    generator = _stream(settings, SIZED)
    for _ in range(DRAWS):
        dealt = _cut(sizes, generator.dirichlet(np.full(clients, settings.alpha), len(sizes) - 1), total / clients)
        if dealt is not None and dealt.sum(axis=1).min() >= least and dealt.sum(axis=1).max() <= most:
            return dealt
    raise UserError(f'{limits}: not in {DRAWS:,} draws; use other limits, or an alpha above {settings.alpha}')


def _cut(sizes: np.ndarray, shares: np.ndarray, full: float) -> np.ndarray | None:
    """Cuts every class at the cumulative shares [K, N] of the clients that hold fewer than `full` images so far."""
    dealt = np.zeros((shares.shape[1], len(sizes)), np.int64)
    held = np.zeros(shares.shape[1], np.int64)
    for k, size in enumerate(sizes[:-1]):
        if not size:
            continue
        share = shares[k] * (held < full)
        if not (whole := share.sum()):
            return None
        cuts = (np.cumsum(share / whole) * size).astype(np.int64)[:-1]
        dealt[:, k] = np.diff(cuts, prepend=0, append=size)
        held += dealt[:, k]
    return dealt


def classes(sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """`classes_per_client` random classes for every client, each class at equally many clients and split equally;
    UserError: there are images of unknown class, or more classes per client than classes, or a class for nobody.
    """
    _need_classes('classes', sizes, settings)
    holds = _holders(len(sizes) - 1, settings)
    shares = holds / holds.sum(axis=0) * sizes[:-1]
    return np.append(controlled_rounding(shares), np.zeros((len(holds), 1), np.int64), axis=1)


def _holders(classes: int, settings: RuleSettings) -> np.ndarray:
    """[N, K] whether a client has a class: c of each row; of each column N c / K, rounded up or down."""
    clients, each = settings.num_clients, settings.classes_per_client
    if not -(-classes // clients) <= each <= classes:
        raise UserError(
            f'config.federation.classes_per_client={each}: {clients} clients share {classes} classes; use '
            f'{-(-classes // clients)} to {classes}'
        )
    generator = _stream(settings, 'classes')
    places = generator.permutation(level(np.array([clients * each]), classes)[:, 0])  # which have one client more
    holds = np.zeros((clients, classes), bool)
    for row in holds:  # taking the classes with the most places left never gets stuck
        taken = np.lexsort((generator.random(classes), -places))[:each]
        row[taken] = True
        places[taken] -= 1
    return generator.permutation(holds)  # so that the order of clients means nothing


def fill_empty(dealt: np.ndarray) -> np.ndarray:
    """Counts [N, K] in which every empty client has got one image of the largest client, of its largest class."""
    filled = dealt.copy()
    totals = filled.sum(axis=1)
    for empty in np.flatnonzero(totals == 0):
        largest = totals.argmax()
        k = filled[largest].argmax()
        filled[largest, k] -= 1
        filled[empty, k] += 1
        totals[largest] -= 1
        totals[empty] = 1
    return filled


def _stream(settings: RuleSettings, name: str) -> np.random.Generator:
    return rng.host(settings.seed, *settings.stream, name)


def _need_classes(rule: str, sizes: np.ndarray, settings: RuleSettings) -> None:
    """Raises UserError if some of the images to deal are of unknown class."""
    if sizes[-1]:
        raise UserError(
            f"{settings.key} is '{rule}', but the labels of {sizes[-1]} training images are unknown, "
            "so their classes cannot be split unevenly: use 'uniform'"
        )


# Name -> rule: sizes [K + 1], settings -> counts [N, K + 1]
PARTITIONS: dict[str, Callable[[np.ndarray, RuleSettings], np.ndarray]] = {
    'uniform': uniform,
    'dirichlet': dirichlet,
    'dirichlet_class': dirichlet_class,
    'classes': classes,
}
# --- what a rule is told about the set of images that it deals


@dataclasses.dataclass(frozen=True)
class RuleSettings:
    """The settings of a rule, for the set that it deals: the unlabeled images of the clients, or their labeled ones."""

    num_clients: int  # N
    seed: int  # of the partition
    stream: tuple[str, ...]  # a rule draws from `rng.host(seed, *stream, NAME)`
    key: str  # for messages: where the rule comes from
    alpha: float | None = None  # the concentration; None where neither set is dealt by a rule that takes it
    min_images: int = 0  # that every client must get, by 'dirichlet_class'; 0 for other rules
    max_images: int = 0  # that a client may get, by 'dirichlet_class'; 0: any number
    classes_per_client: int = 0  # of 'classes'; 0 where neither set is dealt by it


def settings_of(chosen: Mapping[str, Any], labeled: bool = False) -> RuleSettings:
    """From the settings of a partition (`partition.settings`), for the unlabeled images of the clients, or for
    a draw of the `labeled` ones alone: another random stream, concentration and limit."""
    return RuleSettings(
        num_clients=chosen['num_clients'],
        seed=chosen['seed'],
        stream=('partition', 'labeled') if labeled else ('partition',),
        key=f'config.federation.{"labeled_" if labeled else ""}partition',
        alpha=chosen.get('labeled_alpha', chosen['alpha']) if labeled else chosen['alpha'],
        min_images=chosen.get('min_labeled' if labeled else 'min_images', 0),
        max_images=0 if labeled else chosen.get('max_images', 0),
        classes_per_client=chosen.get('classes_per_client', 0),
    )


# --- unlabeled images of other classes than the labeled ones: the share r of Fed-SHVR's experiments on CIFAR-10


def compose_mismatch(totals: np.ndarray, labeled: np.ndarray, available: np.ndarray, share: float) -> np.ndarray:
    """Chooses the classes of every client's unlabeled images, given how many these are.

    round(r n) of a client's n images, r being the `share`, are of classes that it has no labeled image of, the others
    of those that it has, both spread as evenly over their classes as the images there are allow.

    Args:
      totals: [N] unlabeled images of every client.
      labeled: [N, K + 1] labeled ones by class.
      available: [K + 1] images of every class that are not labeled, the last ones of unknown class.

    Returns:
      [N, K + 1] int64, rows summing to `totals` and columns to at most `available`.

    Raises:
      UserError: there are no such counts.
    """
    if available[-1]:
        raise UserError(
            f'config.federation.mismatch={share}: the labels of {available[-1]:,} training images are unknown; use -1'
        )
    owned = labeled[:, :-1] > 0
    others = np.rint(share * totals).astype(np.int64)
    demand = np.concatenate([totals - others, others])  # of every client's own classes, then of its other ones
    dealt = even(demand, np.concatenate([owned, ~owned]), available[:-1])
    if dealt is None:
        raise UserError(
            f'config.federation.mismatch={share}: there are too few images of the classes that clients have labeled '
            'ones of, or of the others; use another share, labeled_partition, or fewer images (data.num_unlabeled)'
        )
    own, other = np.split(dealt, 2)
    return np.append(own + other, np.zeros((len(totals), 1), np.int64), axis=1)
