"""Unlabeled images of other classes than the labeled ones: the share r of Fed-SHVR's experiments on CIFAR-10."""

from __future__ import annotations

import numpy as np

from semisfl_jax.core.errors import UserError
from semisfl_jax.data import flows
from semisfl_jax.data.apportion import even

_NAMED = 5  # clients or classes in a message


def compose(totals: np.ndarray, labeled: np.ndarray, available: np.ndarray, share: float) -> np.ndarray:
    """Chooses the classes of every client's unlabeled images, given how many these are.

    round(r n) of a client's n images are of classes that it has no labeled image of, the others of those that it has,
    both spread as evenly over their classes as the images there are allow.

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
            f'config.federation.mismatch={share}: the labels of {available[-1]:,} training images are unknown, so '
            'they are of no class that could be chosen; use -1'
        )
    owned = labeled[:, :-1] > 0
    others = np.rint(share * totals).astype(np.int64)
    _check_clients(owned, totals, others, share)
    demand = np.concatenate([totals - others, others])  # of every client's own classes, then of its other ones
    allowed = np.concatenate([owned, ~owned])
    if short := flows.shortage(demand, allowed, available[:-1]):
        rows, classes = short
        needed, left = demand[rows].sum(), available[classes].sum()
        raise UserError(
            f'config.federation.mismatch={share}: {_names("client", np.unique(rows % len(totals)))} would take '
            f'{needed:,} unlabeled images of {_names("class", classes)}, of which there are {left:,}; use another '
            f'share, or fewer images, about data.num_unlabeled={int(totals.sum() * left / needed)}'
        )
    own, other = np.split(even(demand, allowed, available[:-1]), 2)
    return np.append(own + other, np.zeros((len(totals), 1), np.int64), axis=1)


def _check_clients(owned: np.ndarray, totals: np.ndarray, others: np.ndarray, share: float) -> None:
    """Raises UserError if a client has no class to take its images from."""
    everything = np.flatnonzero(owned.all(axis=1) & (others > 0))
    nothing = np.flatnonzero(~owned.any(axis=1) & (others < totals))
    if len(everything):
        raise UserError(
            f'config.federation.mismatch={share}: {_names("client", everything)} cannot have unlabeled images of '
            'other classes, having labeled ones of all; use 0 or -1, or give clients labels of fewer classes '
            "(federation.labeled_partition='classes')"
        )
    if len(nothing):
        raise UserError(
            f'config.federation.mismatch={share}: {_names("client", nothing)} cannot have unlabeled images of labeled '
            'classes, without a labeled image; use 1 or -1, or a federation.labeled_partition that leaves nobody '
            "without, such as 'classes'"
        )


def _names(kind: str, numbers: np.ndarray) -> str:
    """'client 3', 'classes 0, 4', 'clients 0, 1, 2, 3, 4 and 7 more'."""
    plural = {'client': 'clients', 'class': 'classes'}[kind] if len(numbers) > 1 else kind
    more = f' and {len(numbers) - _NAMED} more' if len(numbers) > _NAMED else ''
    return f'{plural} {", ".join(map(str, numbers[:_NAMED]))}{more}'
