"""Apportions integers in given proportions."""

from __future__ import annotations

import numpy as np


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
