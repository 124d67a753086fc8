"""Means and standard errors over seeds, paired differences between rows with a significance test, and how many seeds
one needs."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from semisfl_jax.studies import collect
from semisfl_jax.studies.collect import CellKey, CellResult
from semisfl_jax.studies.document import NOTHING, Grid
from semisfl_jax.studies.measures import KINDS, SCORES
from semisfl_jax.studies.spec import Study, Table
from semisfl_jax.training.metrics import mean_and_error

CONFIDENCE = 0.95  # of intervals
POWER, LEVEL = 0.8, 0.05  # with which a difference is to be found, and the two-sided level of the test
FEWEST = 3  # seeds of which a mean is shown
DIFFERENCE_KEYS = (  # of differences.csv
    *('table', 'column', 'row', 'minus', 'unit', 'pairs', 'mean', 'standard_error', 'low', 'high'),
    *('deviation', 'p', 'p_corrected'),
)
Rows = Sequence[Mapping[str, Any]]  # of differences.csv


class Summary(NamedTuple):
    """Of the values of several seeds."""

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
    return Summary(*mean_and_error(list(values.values())), len(values)) if values else None


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """`first` minus `second` over the seeds that both have, with Student's paired t-test; None if they share none. p is
    undefined for a single pair, and if all differences are equal."""
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
    from statsmodels.stats.multitest import multipletests

    tested = [value for value in p if math.isfinite(value)]
    adjusted = iter(multipletests(tested, method='holm')[1] if tested else ())
    return [float(next(adjusted)) if math.isfinite(value) else value for value in p]


def seeds_needed(deviation: float) -> int:
    """Seeds with which a paired t-test finds a mean difference of 1 with probability POWER, at least FEWEST;
    `deviation`: of the differences of pairs, in the same unit."""
    from statsmodels.stats.power import TTestPower

    if deviation <= 0:
        return FEWEST

    def enough(seeds: int) -> bool:
        return not TTestPower().power(1.0 / deviation, seeds, LEVEL) < POWER  # NaN: far more than enough

    return bisect.bisect_left(range(10**6), True, lo=FEWEST, key=enough)


def difference_rows(study: Study, results: Mapping[CellKey, CellResult]) -> list[dict[str, Any]]:
    """A row of differences.csv for every row except the reference, and every column; trivial predictions are in none,
    or p would be corrected for them, too."""
    lines = []
    for table in study.tables:
        of_table: list[dict[str, Any]] = []
        others = [row for row in table.rows if table.reference and row != table.reference]
        for column, row in itertools.product(table.columns, others):
            cells = [cell for name in (table.reference, row) if (cell := table.at(name, column))]
            if len(cells) < 2 or cells[1].measure.trivial:
                continue
            pair = (collect.values(results[table.title, cell.row, column], cell.measure) for cell in cells)
            if difference := paired(*pair):
                kind = cells[0].measure.kind
                places = {'table': table.title, 'column': column, 'row': table.reference, 'minus': row}
                places |= {'measure': kind, 'unit': KINDS[kind].unit}
                numbers = (*difference, *difference.interval, difference.deviation)
                names = ('mean', 'standard_error', 'pairs', 'p', 'low', 'high', 'deviation')
                of_table.append(places | dict(zip(names, numbers, strict=True)))
        for line, p in zip(of_table, corrected([line['p'] for line in of_table]), strict=True):
            line['p_corrected'] = p
        lines += of_table
    return lines


def difference_grid(table: Table, differences: Rows) -> Grid | None:
    """The differences of a table, among the `difference_rows` of its study: the reference minus each other row; None if
    there are none."""
    found = {(line['minus'], line['column']): line for line in differences if line['table'] == table.title}
    rows = dict.fromkeys(cell.row for cell in table.cells if not cell.measure.trivial and cell.row != table.reference)
    lines = tuple((row, *(_difference(found.get((row, column))) for column in table.columns)) for row in rows)
    return Grid((table.row_name, *table.columns), lines) if found else None


def _difference(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return NOTHING
    if difference['pairs'] < FEWEST:
        return f'{NOTHING} ({difference["pairs"]})'
    p = f'p = {difference["p_corrected"]:.2g}' if math.isfinite(difference['p_corrected']) else 'no test'
    mean, low, high = (number(difference[name], difference['unit'], '+') for name in ('mean', 'low', 'high'))
    return f'{mean} [{low}, {high}], {p} ({difference["pairs"]})'


def _deviations(differences: Rows) -> list[float]:
    """Standard deviations of the differences of scores in percent, in points, of those with a test and enough seeds."""
    tested = [row for row in differences if row['pairs'] >= FEWEST and math.isfinite(row['p'])]
    return [row['deviation'] for row in tested if row['unit'] == '%' and row['measure'] in SCORES]


def power_beforehand(study: Study, results: Mapping[CellKey, CellResult]) -> str:
    """How many seeds a difference of a point needs, from runs if three seeds of some comparison are there, else from
    the pilot of the study; '' if there is none."""
    if deviations := _deviations(difference_rows(study, results)):
        deviation, source = float(np.median(deviations)), 'the runs that are there'
    elif study.pilot:
        deviation, source = study.pilot
    else:
        return ''
    seeds = {len(cell.config.seeds) or 1 for cell in study.cells()}
    has = ' to '.join(dict.fromkeys((str(min(seeds)), str(max(seeds)))))
    return (
        f'power: differences of pairs spread by {deviation:.2f} points ({source}), so a difference of one point needs '
        f'{seeds_needed(deviation)} seeds; the study has {has}'
    )


def power(table: Table, differences: Rows) -> str:
    """How many seeds a difference of a point needs in a table; '' where it has no scores in percent."""
    deviations = _deviations([line for line in differences if line['table'] == table.title])
    if not deviations:
        return ''
    middle, largest = float(np.median(deviations)), max(deviations)
    return (
        f'Differences of pairs spread by {middle:.2f} points in the median and {largest:.2f} at most, so a difference '
        f'of one point needs {seeds_needed(middle)} and {seeds_needed(largest)} seeds (power {POWER:.0%}, level '
        f'{LEVEL:.0%} without a correction).'
    )


def number(value: float, unit: str, sign: str = '') -> str:
    """Two decimals for percentages, three significant digits for anything else."""
    digits = '.2f' if unit == '%' else '.3g'
    return format(value, sign + digits) if math.isfinite(value) else NOTHING
