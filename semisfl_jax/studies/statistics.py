"""Means, standard errors, and paired differences with a significance test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy import stats

from semisfl_jax.training import metrics


class Summary(NamedTuple):
    """Summary of the values of several seeds."""

    mean: float
    error: float  # standard error of the mean, NaN for one value
    seeds: int


class Difference(NamedTuple):
    """Difference of pairs of values, one for each seed."""

    mean: float
    error: float
    seeds: int
    p: float  # two-sided, paired t-test; NaN if undefined


def summary(values: Mapping[int, float]) -> Summary | None:
    """The summary of values by seed; None if there are none."""
    if not values:
        return None
    return Summary(*metrics.mean_and_error(list(values.values())), len(values))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """`first` minus `second` over the seeds that both have; None if they share none.

    The test is Student's paired t-test (scipy.stats.ttest_rel). p is undefined for a single pair, and if all
    differences are equal.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    a, b = (np.array([values[seed] for seed in seeds]) for values in (first, second))
    mean, error = metrics.mean_and_error(list(a - b))
    scatter = len(seeds) > 1 and np.ptp(a - b) > 1e-12 * max(1.0, float(np.abs(a - b).max()))
    p = float(stats.ttest_rel(a, b).pvalue) if scatter else math.nan
    return Difference(mean, error, len(seeds), p)
