"""Apportions integers in given proportions."""

from __future__ import annotations

import numpy as np

from semisfl_jax.data import flows

_TINY = 1e-9  # by which a sum of fractions may miss a whole number
_PASSES = 1000  # of proportional fitting; rounding makes up for what is left


def largest_remainder(weight: np.ndarray, total: int) -> np.ndarray:
    """Splits `total` in proportion to `weight`, every part within 1 of its share and the sum exact.

    Hare's method of largest remainders; equal remainders go to the lower index.

    Args:
      weight: [K] non-negative, integer (exact arithmetic) or float; all zeros are treated as equal weights.
      total: the number to split.

    Returns:
      [K] int64 summing to `total`.
    """
    weight = np.asarray(weight)
    if not weight.any():
        weight = np.ones(len(weight), np.int64)
    quotient, remainder = np.divmod(weight * total, weight.sum())
    counts = quotient.astype(np.int64)
    first = np.argsort(-remainder, kind='stable')[: total - counts.sum()]
    counts[first] += 1
    return counts


def level(sizes: np.ndarray, parts: int) -> np.ndarray:
    """Splits every class equally over `parts`; leftovers are dealt in turn, so that totals stay within 1 of each other.

    Args:
      sizes: [K] samples per class.
      parts: N.

    Returns:
      [N, K] int64 whose columns sum to `sizes`.
    """
    counts = np.tile(np.asarray(sizes, np.int64) // parts, (parts, 1))
    start = 0
    for k, size in enumerate(sizes):
        left = int(size) % parts
        counts[(start + np.arange(left)) % parts, k] += 1
        start += left
    return counts


def controlled_rounding(shares: np.ndarray) -> np.ndarray:
    """Rounds a matrix so that entries and sums of rows go up or down to a neighboring integer (Bacharach, 1966).

    Args:
      shares: [N, K] non-negative, whose columns sum to integers.

    Returns:
      [N, K] int64 with the same sums of columns.

    Raises:
      ValueError: a column of `shares` does not sum to an integer.
    """
    columns = np.rint(shares.sum(axis=0)).astype(np.int64)
    counts = flows.within(_neighbors(shares), _neighbors(shares.sum(axis=1)), (columns, columns))
    if counts is None or not np.allclose(shares.sum(axis=0), columns):
        raise ValueError('the columns do not sum to integers')
    return counts


def even(demand: np.ndarray, allowed: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Splits the demand of every row equally over the columns it may take from, as far as these have room.

    Where equal parts would overflow a column, proportional fitting scales that column down and its rows up, in turn.

    Args:
      demand: [R] integers, the sum of each row, which can be met (`flows.shortage` is None).
      allowed: [R, C] bool, where an entry may be above 0.
      room: [C] integers, the highest sum of each column.

    Returns:
      [R, C] int64.
    """
    demand, room = np.asarray(demand, np.int64), np.asarray(room, np.int64)
    parts = allowed * (room > 0)
    shares = demand[:, None] * (parts / np.maximum(parts.sum(axis=1, keepdims=True), 1))
    for _ in range(_PASSES):
        held = shares.sum(axis=0)
        if (held <= room + _TINY).all():
            break
        shares *= np.where(held > room, room / np.maximum(held, 1.0), 1.0)
        shares *= (demand / np.maximum(shares.sum(axis=1), _TINY))[:, None]
    low, high = _neighbors(shares)
    first, last = _neighbors(shares.sum(axis=0))
    slack = 0
    while True:  # fitting that has not converged may need entries that are further away
        entries = np.maximum(low - slack, 0), parts * np.minimum(high + slack, demand[:, None])
        columns = np.clip(first - slack * len(demand), 0, room), np.minimum(last + slack * len(demand), room)
        if (counts := flows.within(entries, (demand, demand), columns)) is not None:
            return counts
        slack = max(1, 2 * slack)


def _neighbors(values: np.ndarray) -> flows.Bounds:
    """The integers next to every value, below and above it; twice the same one if it is an integer."""
    return np.floor(values + _TINY).astype(np.int64), np.ceil(values - _TINY).astype(np.int64)
