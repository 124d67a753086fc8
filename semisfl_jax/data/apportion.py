"""Apportions integers in given proportions, and under constraints."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import maximum_flow

_TINY = 1e-9  # by which a sum of fractions may miss a whole number
_PASSES = 1000  # of proportional fitting; rounding makes up for what is left


def largest_remainder(weight: np.ndarray, total: int) -> np.ndarray:
    """Splits `total` in proportion to `weight` [K], [K] int64: every part within 1 of its share and the sum exact.

    Hare's method of largest remainders; equal remainders go to the lower index. Weights are non-negative, integer
    (exact arithmetic) or float; all zeros are treated as equal weights.
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
    """Splits classes [K] equally over N `parts`, [N, K] int64; leftovers are dealt in turn, so totals are within 1 of
    each other.
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

    `shares` [N, K] are non-negative, and their columns sum to integers; [N, K] int64 with the same sums of columns.
    """
    columns = np.rint(shares.sum(axis=0)).astype(np.int64)
    counts = within(_neighbors(shares), _neighbors(shares.sum(axis=1)), (columns, columns))
    assert counts is not None  # there always is one
    return counts


def even(demand: np.ndarray, allowed: np.ndarray, room: np.ndarray) -> np.ndarray | None:
    """Splits the demand [R] of every row equally over the columns it may take from (`allowed` [R, C] bool), as far as
    these have `room` [C]: [R, C] int64, or None if there is too little.

    Where equal parts would overflow a column, proportional fitting scales that column down and its rows up, in turn.
    """
    demand, room = np.asarray(demand, np.int64), np.asarray(room, np.int64)
    parts = allowed * (room > 0)
    if within((0 * parts, parts * demand[:, None]), (demand, demand), (0 * room, room)) is None:
        return None
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
        if (counts := within(entries, (demand, demand), columns)) is not None:
            return counts
        slack = max(1, 2 * slack)


def _neighbors(values: np.ndarray) -> Bounds:
    """The integers next to every value, below and above it; twice the same one if it is an integer."""
    return np.floor(values + _TINY).astype(np.int64), np.ceil(values - _TINY).astype(np.int64)


# --- integer matrices under constraints on entries, rows and columns, as flows from rows to columns

Bounds = tuple[np.ndarray, np.ndarray]  # lowest and highest value of each


def within(entries: Bounds, rows: Bounds, columns: Bounds) -> np.ndarray | None:
    """An integer matrix [R, C] int64 whose entries, row sums and column sums are within bounds, pairs of lowest and
    highest.

    Always the same for the same bounds; None if there is no such matrix.
    """
    if any((low > high).any() for low, high in (entries, rows, columns)):
        return None
    count, width = entries[0].shape
    row, column = np.arange(1, count + 1), np.arange(count + 1, count + width + 1)
    source, sink, more, less = 0, count + width + 1, count + width + 2, count + width + 3
    tails = np.concatenate([np.repeat(row, width), np.full(count, source), column])
    heads = np.concatenate([np.tile(column, count), row, np.full(width, sink)])
    low, high = (
        np.concatenate([entry.ravel(), total, side]) for entry, total, side in zip(entries, rows, columns, strict=True)
    )
    # A circulation with lower bounds: those flow in any case, and two more nodes make up for what they take and bring.
    brought = np.zeros(less + 1, np.int64)
    np.add.at(brought, heads, low)
    np.subtract.at(brought, tails, low)
    giving, taking = np.flatnonzero(brought > 0), np.flatnonzero(brought < 0)
    tails = np.concatenate([tails, [sink], np.full(len(giving), more), taking])
    heads = np.concatenate([heads, [source], giving, np.full(len(taking), less)])
    capacity = np.concatenate([high - low, [rows[1].sum()], brought[giving], -brought[taking]]).astype(np.int32)
    graph = csr_matrix(coo_matrix((capacity, (tails, heads)), shape=(less + 1, less + 1)))
    result = maximum_flow(graph, more, less)
    if result.flow_value < brought[giving].sum():
        return None
    return entries[0] + result.flow[1 : count + 1, count + 1 : sink].toarray()
