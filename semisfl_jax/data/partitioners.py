"""The rules by which images are dealt to clients: how many of each class a client gets.

A rule takes the sizes [K + 1] of the classes, the last one being the images of unknown class, and `RuleSettings`; it
returns integer counts [N, K + 1] whose columns sum to the sizes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError, found
from semisfl_jax.data.apportion import controlled_rounding, even, largest_remainder, level, shortage

DRAWS = 10_000  # of 'dirichlet_class', before it gives up
SIZED = 'dirichlet_class'  # the rule that keeps `min_images`, `max_images` and `min_labeled`
WITHOUT_ALPHA = ('uniform', 'classes', 'same')


def counts(rule: str, sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """[N, K + 1] images per client and group by a rule of PARTITIONS, from the sizes [K + 1] of classes and the rest.

    Raises:
      UserError: the rule cannot deal these sizes, or returns something else than their counts.
    """
    dealt = np.asarray(PARTITIONS[rule](sizes.copy(), settings))
    shape = settings.num_clients, len(sizes)
    if (
        dealt.shape != shape
        or not np.issubdtype(dealt.dtype, np.integer)
        or (dealt < 0).any()
        or (dealt.sum(axis=0) != sizes).any()
    ):
        raise UserError(
            f"{settings.keys.rule}='{rule}': the rule in data.PARTITIONS returns {found(dealt)}; return integers "
            f'{list(shape)}, 0 or more, the columns of which sum to the sizes {sizes.tolist()}'
        )
    return dealt


def alike(rule: str, sizes: np.ndarray, chosen: Mapping[str, Any], unlabeled: np.ndarray) -> np.ndarray:
    """[N, K + 1] labeled images per client and group, with the shares or classes of the unlabeled ones.

    The rule is applied to them with the same random numbers; what 'dirichlet_class' draws depends on the sizes, so
    there every class follows the counts of the unlabeled images, [N, K + 1].
    """
    if rule != SIZED:
        return counts(rule, sizes, settings_of_unlabeled(chosen))
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
    al., 2024): classes in turn, and nothing to a client that already holds its n / N of all n images.

    Drawn again until every client has at least `min_images` and, unless 0, at most `max_images`. A draw in which all
    clients with room for more have a share of 0 does not count either; in float64 this takes a very small alpha.

    Raises:
      UserError: there are images of unknown class, the limits cannot be met, or no draw met them.
    """
    _need_classes(SIZED, sizes, settings)
    clients, total = settings.num_clients, int(sizes.sum())
    least, most = settings.min_images, settings.max_images or total
    rule_key, alpha_key, least_key, most_key = settings.keys
    shared = f'{clients} clients share {total:,} images; use'
    if least * clients > total:
        raise UserError(f'{least_key}={least}: {shared} {total // clients} or fewer')
    if most * clients < total:
        raise UserError(f'{most_key}={most}: {shared} {-(-total // clients)} or more')
    generator = _stream(settings, SIZED)
    concentration = np.full(clients, settings.alpha)
    best, best_fault = None, math.inf
    for _ in range(DRAWS):
        dealt = _cut(sizes, generator.dirichlet(concentration, len(sizes) - 1), total / clients)
        if dealt is None:
            continue
        held = dealt.sum(axis=1)
        fault = max(least - held.min(), held.max() - most)
        if fault <= 0:
            return dealt
        if fault < best_fault:
            best, best_fault = held, fault
    few = best is None or best.min() < least
    result = '' if best is None else f', and the best left {best.min():,} to {best.max():,} images each'
    raise UserError(
        f"{least_key if few else most_key}={least if few else most}: none of {DRAWS:,} draws of {rule_key}='{SIZED}' "
        f'with {alpha_key}={settings.alpha} kept to it{result}; use another limit, or a larger alpha'
    )


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
    """`classes_per_client` random classes for every client, each class at equally many clients and split equally.

    Raises:
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
            f"{settings.keys.rule} is '{rule}', but the labels of {sizes[-1]} training images are unknown, "
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


class Keys(NamedTuple):
    """For messages: the full names of the keys that a rule's settings were read from."""

    rule: str
    alpha: str
    min_images: str
    max_images: str = ''


@dataclasses.dataclass(frozen=True)
class RuleSettings:
    """The settings of a rule, for the set that it deals: the unlabeled images of the clients, or their labeled ones."""

    num_clients: int  # N
    seed: int  # of the partition
    stream: tuple[str, ...]  # a rule draws from `rng.host(seed, *stream, NAME)`
    keys: Keys  # where rule, `alpha`, `min_images` and `max_images` come from
    alpha: float | None = None  # the concentration; None where neither set is dealt by a rule that takes it
    min_images: int = 0  # that every client must get, by 'dirichlet_class'; 0 for other rules
    max_images: int = 0  # that a client may get, by 'dirichlet_class'; 0: any number
    classes_per_client: int = 0  # of 'classes'; 0 where neither set is dealt by it


def settings_of_unlabeled(chosen: Mapping[str, Any]) -> RuleSettings:
    """From the settings of a partition (`partition_settings.settings`), for the unlabeled images of the clients."""
    return RuleSettings(
        num_clients=chosen['num_clients'],
        seed=chosen['seed'],
        stream=('partition',),
        keys=Keys(*(f'config.federation.{name}' for name in ('partition', 'alpha', 'min_images', 'max_images'))),
        alpha=chosen['alpha'],
        min_images=chosen.get('min_images', 0),
        max_images=chosen.get('max_images', 0),
        classes_per_client=chosen.get('classes_per_client', 0),
    )


def settings_of_labeled(chosen: Mapping[str, Any]) -> RuleSettings:
    """The same for a draw of the labeled images alone: another random stream, concentration and limit."""
    alpha = 'labeled_alpha' if 'labeled_alpha' in chosen else 'alpha'
    return dataclasses.replace(
        settings_of_unlabeled(chosen),
        stream=('partition', 'labeled'),
        keys=Keys(*(f'config.federation.{name}' for name in ('labeled_partition', alpha, 'min_labeled'))),
        alpha=chosen[alpha],
        min_images=chosen.get('min_labeled', 0),
        max_images=0,
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
    owned = labeled[:, :-1] > 0
    others = np.rint(share * totals).astype(np.int64)
    demand = np.concatenate([totals - others, others])  # of every client's own classes, then of its other ones
    allowed = np.concatenate([owned, ~owned])
    if available[-1]:
        fault = f'the labels of {available[-1]:,} training images are unknown; use -1'
    elif len(rows := np.flatnonzero(~allowed.any(axis=1) & (demand > 0))):
        which = (
            'other classes, having labeled ones of all' if rows[0] >= len(totals) else 'labeled classes, having none'
        )
        fault = f'client {rows[0] % len(totals)} cannot have unlabeled images of {which}; use another labeled_partition'
    elif short := shortage(demand, allowed, available[:-1]):
        rows, columns = short
        needed, left = demand[rows].sum(), available[columns].sum()
        fault = (
            f'clients would take {needed:,} unlabeled images of the classes {columns.tolist()}, of which there are '
            f'{left:,}; use another share, or about data.num_unlabeled={int(totals.sum() * left / needed)}'
        )
    else:
        own, other = np.split(even(demand, allowed, available[:-1]), 2)
        return np.append(own + other, np.zeros((len(totals), 1), np.int64), axis=1)
    raise UserError(f'config.federation.mismatch={share}: {fault}')
