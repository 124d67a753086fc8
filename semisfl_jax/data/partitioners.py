"""The rules that split images among clients: how many of each class a client gets.

A rule takes the sizes [K + 1] of the classes, the last one for images of unknown class, and `RuleSettings`; it returns
integer counts [N, K + 1] whose columns sum to the sizes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from semisfl_jax.base.errors import UserError, describe
from semisfl_jax.core import rng
from semisfl_jax.data.apportion import controlled_rounding, fill_rows, largest_remainder, split_evenly

DRAWS = 10_000  # tries of 'dirichlet_class' before it gives up
SIZED = 'dirichlet_class'  # the rule that keeps `min_images`, `max_images` and `min_labeled`
NATURAL = 'natural'  # no rule: clients have the images that the data give them (`Dataset.client_ids`)
WITHOUT_ALPHA = ('uniform', 'classes', 'same', NATURAL)


@dataclasses.dataclass(frozen=True)
class RuleSettings:
    """Settings of a rule for the images that it splits: the clients' unlabeled images, or their labeled ones."""

    num_clients: int  # N
    seed: int  # of the partition
    stream: tuple[str, ...]  # a rule draws from `rng.host(seed, *stream, NAME)`
    key: str  # for messages: where the rule comes from
    alpha: float | None = None  # the concentration; None if no rule in use takes it
    min_images: int = 0  # minimum per client, for 'dirichlet_class'; 0 for other rules
    max_images: int = 0  # maximum per client, for 'dirichlet_class'; 0: any number
    classes_per_client: int = 0  # for 'classes'; 0 if it is not in use


def settings_of(chosen: Mapping[str, Any], labeled: bool = False) -> RuleSettings:
    """Selects the settings of a rule from those of a partition.

    Args:
      chosen: settings of a partition (`partition.settings`).
      labeled: for a separate draw of the clients' labeled images, with another random stream, concentration and limit;
        otherwise for their unlabeled images.
    """
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


def counts(rule: str, sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """Applies a rule and checks what it returns.

    Args:
      rule: a key of PARTITIONS.
      sizes: [K + 1] images of every class, the last ones of unknown class.
      settings: for the rule.

    Returns:
      [N, K + 1] images per client and class.

    Raises:
      UserError: the rule cannot split these sizes, or returns anything but counts that add up to them.
    """
    dealt = np.asarray(PARTITIONS[rule](sizes.copy(), settings))
    shape, fault = (settings.num_clients, len(sizes)), ''
    if dealt.shape != shape or not np.issubdtype(dealt.dtype, np.integer):
        fault = describe(dealt)
    elif (dealt < 0).any():
        fault = f'{dealt.min()}'
    elif (dealt.sum(axis=0) != sizes).any():
        fault = f'columns that sum to {dealt.sum(axis=0).tolist()}'
    if fault:
        raise UserError(
            f"{settings.key}='{rule}': the rule in data.PARTITIONS returns {fault}; return integers {list(shape)}, "
            f'0 or more, whose columns sum to the sizes {sizes.tolist()}'
        )
    return dealt


def same_shares_as_unlabeled(
    rule: str, sizes: np.ndarray, chosen: Mapping[str, Any], unlabeled: np.ndarray
) -> np.ndarray:
    """Splits labeled images with the shares or classes of the unlabeled ones.

    The rule runs with the random numbers of the unlabeled images. What 'dirichlet_class' draws depends on the sizes, so
    there every class follows the counts of the unlabeled images instead.

    Args:
      rule: the rule of the unlabeled images.
      sizes: [K + 1] labeled images by class, the last ones of unknown class.
      chosen: settings of a partition.
      unlabeled: [N, K + 1] counts of the unlabeled images.

    Returns:
      [N, K + 1] labeled images per client and class.
    """
    if rule != SIZED:
        return counts(rule, sizes, settings_of(chosen))
    return np.stack([largest_remainder(*column) for column in zip(unlabeled.T, sizes, strict=True)], axis=1)


def uniform(sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """Splits every class equally among all clients: sizes [K + 1] -> counts [N, K + 1]."""
    return split_evenly(sizes, settings.num_clients)


def dirichlet(sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """Draws Dir(alpha) over the classes once per client; raises UserError if there are images of unknown class.

    With draws p [N, K], client i gets the share p_ic / sum_j p_jc of class c: sizes [K + 1] -> counts [N, K + 1].
    """
    _need_classes('dirichlet', sizes, settings)
    clients, classes = settings.num_clients, len(sizes) - 1
    share = _stream(settings, 'dirichlet').dirichlet(np.full(classes, settings.alpha), clients)
    columns = [largest_remainder(share[:, k], sizes[k]) for k in range(classes)]
    return np.stack([*columns, np.zeros(clients, np.int64)], axis=1)


def dirichlet_class(sizes: np.ndarray, settings: RuleSettings) -> np.ndarray:
    """Draws Dir(alpha) over the clients once per class.

    Follows the code of SemiFL (Diao et al., 2022) and of FedDure (Bai et al., 2024): the classes take turns, and a
    client that already holds its n / N of all n images gets no share (except that rounding may give the last client an
    image).

    Draws again until every client has at least `min_images` and, unless that is 0, at most `max_images`. A draw in
    which all clients with room for more have a share of 0 does not count either; in float64 this takes a very small
    alpha.

    Args:
      sizes: [K + 1] images of every class, the last ones of unknown class.
      settings: with `alpha`, `min_images` and `max_images`.

    Returns:
      [N, K + 1].

    Raises:
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
    """Gives every client `classes_per_client` random classes, each to equally many clients, and splits each equally.

    Args:
      sizes: [K + 1] images of every class, the last ones of unknown class.
      settings: with `classes_per_client`.

    Returns:
      [N, K + 1].

    Raises:
      UserError: there are images of unknown class, more classes per client than classes, or a class for nobody.
    """
    _need_classes('classes', sizes, settings)
    holds = _holders(len(sizes) - 1, settings)
    shares = holds / holds.sum(axis=0) * sizes[:-1]
    return np.append(controlled_rounding(shares), np.zeros((len(holds), 1), np.int64), axis=1)


def _holders(classes: int, settings: RuleSettings) -> np.ndarray:
    """Draws which clients hold which classes, [N, K] bool: c in each row, N c / K rounded up or down in each column."""
    clients, each = settings.num_clients, settings.classes_per_client
    if not -(-classes // clients) <= each <= classes:
        raise UserError(
            f'config.federation.classes_per_client={each}: {clients} clients share {classes} classes; use '
            f'{-(-classes // clients)} to {classes}'
        )
    generator = _stream(settings, 'classes')
    places = generator.permutation(split_evenly(np.array([clients * each]), classes)[:, 0])  # some have one client more
    holds = np.zeros((clients, classes), bool)
    for row in holds:  # the classes with the most places left first: never gets stuck
        taken = np.lexsort((generator.random(classes), -places))[:each]
        row[taken] = True
        places[taken] -= 1
    return generator.permutation(holds)  # so that the order of clients carries no information


def fill_empty(dealt: np.ndarray) -> np.ndarray:
    """Gives every empty client one image of the largest client, from its largest class: counts [N, K] -> [N, K]."""
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
    """Raises UserError if some of the images to split are of unknown class."""
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
# --- unlabeled images of classes without labeled ones: the share r of Fed-SHVR's experiments on CIFAR-10


def compose_mismatch(totals: np.ndarray, labeled: np.ndarray, available: np.ndarray, share: float) -> np.ndarray:
    """Chooses the classes of every client's unlabeled images, from the number of these images.

    Of a client's n images, round(r n), r being the `share`, are of classes of which it has no labeled image; the rest
    are of classes of which it has one. Both spread over their classes as evenly as the available images allow.

    Args:
      totals: [N] unlabeled images of every client.
      labeled: [N, K + 1] labeled ones by class.
      available: [K + 1] images of every class that are not labeled, the last ones of unknown class.
      share: r.

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
    demand = np.concatenate([totals - others, others])  # for classes that a client has labels of, then for the others
    dealt = fill_rows(demand, np.concatenate([owned, ~owned]), available[:-1])
    if dealt is None:
        raise UserError(
            f'config.federation.mismatch={share}: there are too few images of the classes that clients have labeled '
            'ones of, or of the others; use another share, labeled_partition, or fewer images (data.num_unlabeled)'
        )
    in_labels, in_others = np.split(dealt, 2)
    return np.append(in_labels + in_others, np.zeros((len(totals), 1), np.int64), axis=1)
