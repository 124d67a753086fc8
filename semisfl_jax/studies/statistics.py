"""Means, standard errors, and paired differences with their test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

from semisfl_jax.training import metrics


class Summary(NamedTuple):
    """Of n values."""

    mean: float
    error: float  # standard error of the mean, NaN for one value
    count: int


class Difference(NamedTuple):
    """Of n pairs."""

    mean: float
    error: float
    count: int
    p: float  # two-sided, paired t-test; NaN where there is none


def summary(values: Mapping[int, float]) -> Summary | None:
    """Of values by seed; None where there is none."""
    if not values:
        return None
    return Summary(*metrics.mean_and_error(list(values.values())), len(values))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """`first` minus `second` over the seeds that both have; None where they share none.

    The test is Student's for pairs (scipy.stats.ttest_rel). It has no p for a single pair, nor where all differences
    are the same.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    a, b = (np.array([own[seed] for seed in seeds]) for own in (first, second))
    mean, error = metrics.mean_and_error(list(a - b))
    scatter = len(seeds) > 1 and np.ptp(a - b) > 1e-12 * max(1.0, float(np.abs(a - b).max()))
    p = float(stats.ttest_rel(a, b).pvalue) if scatter else math.nan
    return Difference(mean, error, len(seeds), p)
