"""Splits integers in given proportions, optionally under constraints."""

import numpy as np

Bounds = tuple[np.ndarray, np.ndarray]  # lowest and highest value of each
_TINY = 1e-9  # tolerance for a sum of fractions to count as a whole number
_PASSES = 1000  # of proportional fitting; rounding absorbs what remains


def largest_remainder(weight: np.ndarray, total: int) -> np.ndarray:
    """Splits `total` in proportion to `weight` by Hare's method of largest remainders.

    Every part is within 1 of its exact share. Equal remainders go to the lower index.

    Args:
      weight: [K] non-negative, integers (exact arithmetic) or floats; all zeros count as equal weights.
      total: the sum of the parts.

    Returns:
      [K] int64.
    """
    weight = np.asarray(weight)
    if not weight.any():
        weight = np.ones(len(weight), np.int64)
    quotient, remainder = np.divmod(weight * total, weight.sum())
    counts = quotient.astype(np.int64)
    first = np.argsort(-remainder, kind='stable')[: total - counts.sum()]
    counts[first] += 1
    return counts


def split_evenly(sizes: np.ndarray, parts: int) -> np.ndarray:
    """Splits every class equally over the parts.

    Leftovers go to the parts in turn, across classes, so the parts' totals differ by at most 1.

    Args:
      sizes: [K].
      parts: N.

    Returns:
      [N, K] int64.
    """
    counts = np.tile(np.asarray(sizes, np.int64) // parts, (parts, 1))
    start = 0
    for k, size in enumerate(sizes):
        left = int(size) % parts
        counts[(start + np.arange(left)) % parts, k] += 1
        start += left
    return counts


def controlled_rounding(shares: np.ndarray) -> np.ndarray:
    """Rounds a matrix: entries and row sums go up or down to a neighboring integer (Bacharach, 1966).

    `shares` [N, K] are non-negative with integer column sums. The result, [N, K] int64, keeps the column sums.
    """
    columns = np.rint(shares.sum(axis=0)).astype(np.int64)
    counts = round_within_bounds(_neighbors(shares), _neighbors(shares.sum(axis=1)), (columns, columns))
    assert counts is not None  # a solution always exists
    return counts


def fill_rows(demand: np.ndarray, allowed: np.ndarray, room: np.ndarray) -> np.ndarray | None:
    """Splits the demand of every row equally over the columns it may take from, as far as they have room.

    Where equal parts would overflow a column, proportional fitting alternately scales that column down and its rows up.

    Args:
      demand: [R].
      allowed: [R, C] bool, the columns that a row may take from.
      room: [C].

    Returns:
      [R, C] int64, or None if there is too little room.
    """
    demand, room = np.asarray(demand, np.int64), np.asarray(room, np.int64)
    parts = allowed * (room > 0)
    if round_within_bounds((0 * parts, parts * demand[:, None]), (demand, demand), (0 * room, room)) is None:
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
    while True:  # if fitting has not converged, entries may need more slack
        entries = np.maximum(low - slack, 0), parts * np.minimum(high + slack, demand[:, None])
        columns = np.clip(first - slack * len(demand), 0, room), np.minimum(last + slack * len(demand), room)
        if (counts := round_within_bounds(entries, (demand, demand), columns)) is not None:
            return counts
        slack = max(1, 2 * slack)


def _neighbors(values: np.ndarray) -> Bounds:
    """Returns the integers below and above every value; both are the value itself if it is an integer."""
    return np.floor(values + _TINY).astype(np.int64), np.ceil(values - _TINY).astype(np.int64)


def round_within_bounds(entries: Bounds, rows: Bounds, columns: Bounds) -> np.ndarray | None:
    """Finds an integer matrix whose entries, row sums and column sums are within bounds: a flow from rows to columns.

    Equal bounds always give the same matrix.

    Args:
      entries: lowest and highest, [R, C] each.
      rows: lowest and highest row sums, [R] each.
      columns: lowest and highest column sums, [C] each.

    Returns:
      [R, C] int64, or None if there is no such matrix.
    """
    from scipy import sparse  # slow to import, and only some partitions need it
    from scipy.sparse import csgraph

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
    # A circulation with lower bounds: they always flow, and two extra nodes balance what they take and bring.
    brought = np.zeros(less + 1, np.int64)
    np.add.at(brought, heads, low)
    np.subtract.at(brought, tails, low)
    giving, taking = np.flatnonzero(brought > 0), np.flatnonzero(brought < 0)
    tails = np.concatenate([tails, [sink], np.full(len(giving), more), taking])
    heads = np.concatenate([heads, [source], giving, np.full(len(taking), less)])
    capacity = np.concatenate([high - low, [rows[1].sum()], brought[giving], -brought[taking]]).astype(np.int32)
    graph = sparse.csr_matrix(sparse.coo_matrix((capacity, (tails, heads)), shape=(less + 1, less + 1)))
    result = csgraph.maximum_flow(graph, more, less)
    if result.flow_value < brought[giving].sum():
        return None
    return entries[0] + result.flow[1 : count + 1, count + 1 : sink].toarray()
