"""Means and standard errors over seeds, paired differences with a significance test, and how many seeds one needs."""

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import semisfl_jax as sfl
from semisfl_jax.lab.studies.document import NOTHING, Grid
from semisfl_jax.lab.studies.measures import KINDS, SCORES, Cells
from semisfl_jax.lab.studies.spec import Study, Table

CONFIDENCE = 0.95  # of intervals
POWER, LEVEL = 0.8, 0.05  # with which a difference is to be found, and the two-sided level of the test
FEWEST = 3  # seeds of which a mean is shown
DIFFERENCE_KEYS = (  # of differences.csv
    *('table', 'column', 'row', 'minus', 'unit', 'pairs', 'mean', 'standard_error', 'low', 'high'),
    *('deviation', 'p', 'p_corrected'),
)
Rows = Sequence[Mapping[str, Any]]  # of a CSV file


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


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """Compares values by seed over the seeds that both have, with Student's paired t-test.

    Args:
      first: values by seed.
      second: values by seed.

    Returns:
      `first` minus `second`; None if they share no seed. p is undefined for a single pair, and if all differences are
      equal.
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    a, b = (np.array([values[seed] for seed in seeds]) for values in (first, second))
    mean, error = sfl.mean_and_error(list(a - b))
    scatter = len(seeds) > 1 and np.ptp(a - b) > 1e-12 * max(1.0, float(np.abs(a - b).max()))
    p = float(stats.ttest_rel(a, b).pvalue) if scatter else math.nan
    return Difference(mean, error, len(seeds), p)


def corrected(p: Sequence[float]) -> list[float]:
    """Corrects the p of several tests for their number by Holm's method; NaN stays, and counts as no test."""
    values = np.array(p, float)
    order = np.argsort(values)[: np.isfinite(values).sum()]  # NaN comes last
    steps = values[order] * np.arange(len(order), 0, -1)
    values[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return values.tolist()


def seeds_needed(deviation: float) -> int:
    """Returns the number of seeds with which a paired t-test finds a mean difference of 1 with probability POWER.

    It is at least FEWEST. `deviation` is that of the differences of pairs, in the unit of the difference.
    """
    from statsmodels.stats.power import TTestPower

    if deviation <= 0:
        return FEWEST

    def enough(seeds: int) -> bool:
        return not TTestPower().power(1.0 / deviation, seeds, LEVEL) < POWER  # NaN: far more than enough

    return bisect.bisect_left(range(10**6), True, lo=FEWEST, key=enough)


def difference_rows(study: Study, cells: Cells) -> list[dict[str, Any]]:
    """Makes a row of differences.csv for every row except the reference, and every column, of every table.

    Trivial predictions are in none, or p would be corrected for them, too.
    """
    lines = []
    for table in study.tables:
        table_lines: list[dict[str, Any]] = []
        others = [row for row in table.rows if table.reference and row != table.reference]
        for column, row in itertools.product(table.columns, others):
            reference, cell = table.at(table.reference, column), table.at(row, column)
            if reference is None or cell is None or cell.measure.trivial:
                continue
            pair = (cells[table.title, name, column].values for name in (table.reference, row))
            if difference := paired(*pair):
                kind = reference.measure.kind
                line: dict[str, Any] = {'table': table.title, 'column': column, 'row': table.reference, 'minus': row}
                line |= {'measure': kind, 'unit': KINDS[kind].unit}
                numbers = (*difference, *difference.interval, difference.deviation)
                names = ('mean', 'standard_error', 'pairs', 'p', 'low', 'high', 'deviation')
                table_lines.append(line | dict(zip(names, numbers, strict=True)))
        for line, p in zip(table_lines, corrected([line['p'] for line in table_lines]), strict=True):
            line['p_corrected'] = p
        lines += table_lines
    return lines


def difference_grid(table: Table, differences: Rows) -> Grid | None:
    """Shows the differences of a table, the reference minus each other row.

    Args:
      table: the table.
      differences: the `difference_rows` of its study.

    Returns:
      The grid, None if the table has no differences.
    """
    lines = {(line['minus'], line['column']): line for line in differences if line['table'] == table.title}
    rows = dict.fromkeys(cell.row for cell in table.cells if not cell.measure.trivial and cell.row != table.reference)
    texts = [(row, *(_difference(lines.get((row, column))) for column in table.columns)) for row in rows]
    return Grid((table.row_name, *table.columns), texts) if lines else None


def _difference(difference: Mapping[str, Any] | None) -> str | None:
    """Formats a difference with its interval: '+2.33 [-1.46, +6.13], p = 0.12 (3)'."""
    if difference is None:
        return None
    if difference['pairs'] < FEWEST:
        return f'{NOTHING} ({difference["pairs"]})'
    p = f'p = {difference["p_corrected"]:.2g}' if math.isfinite(difference['p_corrected']) else 'no test'
    mean, low, high = (number(difference[name], difference['unit'], '+') for name in ('mean', 'low', 'high'))
    return f'{mean} [{low}, {high}], {p} ({difference["pairs"]})'


def _deviations(differences: Rows) -> list[float]:
    """Lists the standard deviations of differences of scores in percent, of those with a test and enough seeds."""
    tested = [row for row in differences if row['pairs'] >= FEWEST and math.isfinite(row['p'])]
    return [row['deviation'] for row in tested if row['unit'] == '%' and row['measure'] in SCORES]


def power_beforehand(study: Study, cells: Cells) -> str:
    """Says how many seeds a difference of a point needs; '' if nothing tells.

    It is told by runs if three seeds of some comparison are there, else by the pilot of the study.
    """
    if deviations := _deviations(difference_rows(study, cells)):
        deviation, source = float(np.median(deviations)), 'runs so far'
    elif study.pilot:
        deviation, source = study.pilot
    else:
        return ''
    seeds = {len(cell.config.seeds) or 1 for cell in study.cells()}
    has = ' to '.join(dict.fromkeys((str(min(seeds)), str(max(seeds)))))
    return (
        f'power: paired differences have a standard deviation of {deviation:.2f} points ({source}), so detecting a '
        f'difference of one point takes {seeds_needed(deviation)} seeds; the study has {has}'
    )


def power(table: Table, differences: Rows) -> str:
    """Says how many seeds a difference of a point needs in a table; '' where it has no scores in percent."""
    deviations = _deviations([line for line in differences if line['table'] == table.title])
    if not deviations:
        return ''
    middle, largest = float(np.median(deviations)), max(deviations)
    spread, seeds = f'{middle:.2f} points', f'{seeds_needed(middle)}'
    if len(deviations) > 1:
        spread, seeds = f'{spread} (median; at most {largest:.2f})', f'{seeds} (at most {seeds_needed(largest)})'
    return (
        f'Paired differences have a standard deviation of {spread}, so detecting a difference of one point takes '
        f'{seeds} seeds (power {100 * POWER:g} %, uncorrected level {100 * LEVEL:g} %).'
    )


def number(value: float, unit: str, sign: str = '') -> str:
    """Formats a number: percentages with two decimals, anything else with three significant digits."""
    digits = '.2f' if unit == '%' else '.3g'
    return format(value, sign + digits) if math.isfinite(value) else NOTHING
