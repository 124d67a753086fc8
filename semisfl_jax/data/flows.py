"""Integer matrices under constraints on entries, rows and columns, as flows from rows to columns."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

Bounds = tuple[np.ndarray, np.ndarray]  # lowest and highest value of each


def within(entries: Bounds, rows: Bounds, columns: Bounds) -> np.ndarray | None:
    """An integer matrix whose entries, row sums and column sums are within bounds.

    Args:
      entries: two [R, C] of integers.
      rows: two [R], of the sums of rows.
      columns: two [C], of the sums of columns.

    Returns:
      [R, C] int64, always the same for the same bounds; None if there is no such matrix.
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
    graph = _graph(
        np.concatenate([tails, [sink], np.full(len(giving), more), taking]),
        np.concatenate([heads, [source], giving, np.full(len(taking), less)]),
        np.concatenate([high - low, [rows[1].sum()], brought[giving], -brought[taking]]),
        less + 1,
    )
    result = maximum_flow(graph, more, less)
    if result.flow_value < brought[giving].sum():
        return None
    return entries[0] + result.flow[1 : count + 1, count + 1 : sink].toarray()


def shortage(demand: np.ndarray, allowed: np.ndarray, room: np.ndarray) -> Bounds | None:
    """Rows that ask for more than there is in all the columns that they may take from.

    Args:
      demand: [R] integers, the sum of each row.
      allowed: [R, C] bool, where an entry may be above 0.
      room: [C] integers, the highest sum of each column.

    Returns:
      Some such rows, and all columns where they may take from, both ascending; None if every demand can be met.
    """
    count, width = allowed.shape
    row, column = np.nonzero(allowed)
    sink = count + width + 1
    tails = np.concatenate([np.zeros(count, np.int64), row + 1, np.arange(count + 1, sink)])
    heads = np.concatenate([np.arange(1, count + 1), column + count + 1, np.full(width, sink)])
    graph = _graph(tails, heads, np.concatenate([demand, np.full(len(row), demand.sum()), room]), sink + 1)
    result = maximum_flow(graph, 0, sink)
    if result.flow_value == demand.sum():
        return None
    left = csr_matrix(graph - result.flow)
    left.eliminate_zeros()
    reached = breadth_first_order(left, 0, return_predecessors=False)  # the source's side of a minimum cut
    return np.sort(reached[(reached > 0) & (reached <= count)]) - 1, np.sort(reached[reached > count]) - count - 1


def _graph(tails: np.ndarray, heads: np.ndarray, capacity: np.ndarray, nodes: int) -> csr_matrix:
    return csr_matrix(coo_matrix((capacity.astype(np.int32), (tails, heads)), shape=(nodes, nodes)))
