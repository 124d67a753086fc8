"""Means, standard errors and intervals, paired differences with a significance test, and how many seeds one needs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
from scipy import stats

from semisfl_jax.core.errors import UserError
from semisfl_jax.training.metrics import mean_and_error

CONFIDENCE = 0.95  # of intervals
POWER, LEVEL = 0.8, 0.05  # with which a difference is to be found, and the two-sided level of the test
FEWEST = 3  # seeds of which a mean is shown


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

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds of CONFIDENCE of the mean difference, by Student's t; NaN for a single pair."""
        half = self.error * stats.t.ppf(0.5 + CONFIDENCE / 2, self.seeds - 1) if self.seeds > 1 else math.nan
        return self.mean - half, self.mean + half

    @property
    def deviation(self) -> float:
        """The standard deviation of the pairs' differences, NaN for a single pair."""
        return self.error * math.sqrt(self.seeds)


def summary(values: Mapping[int, float]) -> Summary | None:
    """The summary of values by seed; None if there are none."""
    if not values:
        return None
    return Summary(*mean_and_error(list(values.values())), len(values))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """`first` minus `second` over the seeds that both have; None if they share none.

    The test is Student's paired t-test (scipy.stats.ttest_rel). p is undefined for a single pair, and if all
    differences are equal.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    a, b = (np.array([values[seed] for seed in seeds]) for values in (first, second))
    mean, error = mean_and_error(list(a - b))
    scatter = len(seeds) > 1 and np.ptp(a - b) > 1e-12 * max(1.0, float(np.abs(a - b).max()))
    p = float(stats.ttest_rel(a, b).pvalue) if scatter else math.nan
    return Difference(mean, error, len(seeds), p)


def corrected(p: Sequence[float]) -> list[float]:
    """The p of several tests, corrected for their number by Holm's method; NaN stays, and counts as no test."""
    multitest, _ = _statsmodels()
    tested = [value for value in p if math.isfinite(value)]
    if not tested:
        return list(p)
    adjusted = iter(multitest.multipletests(tested, method='holm')[1])
    return [float(next(adjusted)) if math.isfinite(value) else value for value in p]


def seeds_needed(deviation: float, difference: float = 1.0) -> int:
    """Seeds with which a paired t-test finds a mean `difference` with probability POWER, at least FEWEST.

    `deviation`: the standard deviation of the differences of pairs, in the same unit.
    """
    _, power = _statsmodels()
    if deviation <= 0:
        return FEWEST
    test, effect = power.TTestPower(), difference / deviation
    if effect > 1:  # a few, where the solver below may fail; of far more than enough the power is NaN
        return next(seeds for seeds in itertools.count(FEWEST) if not test.power(effect, seeds, LEVEL) < POWER)
    return math.ceil(test.solve_power(effect, alpha=LEVEL, power=POWER))


def check() -> None:
    """Raises UserError if the library behind these numbers is not installed."""
    _statsmodels()


def _statsmodels() -> tuple[ModuleType, ModuleType]:
    """Its modules of tests and of power, imported on first use: that takes seconds.

    Raises:
      UserError: it is not installed.
    """
    try:
        from statsmodels.stats import multitest, power
    except ImportError as error:
        raise UserError("reports of studies need statsmodels: pip install -e '.[plots]'") from error
    return multitest, power
