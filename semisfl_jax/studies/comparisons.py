"""Differences between the reference row of a table and its other rows, and how many seeds they need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semisfl_jax.studies import collect, statistics
from semisfl_jax.studies.collect import CellKey, CellResult
from semisfl_jax.studies.document import Grid
from semisfl_jax.studies.spec import Study, Table

NOTHING = '—'
KEYS = (  # of differences.csv
    *('table', 'column', 'row', 'minus', 'unit', 'pairs', 'mean', 'standard_error', 'low', 'high'),
    *('deviation', 'p', 'p_corrected'),
)


Rows = Sequence[Mapping[str, Any]]  # of differences.csv


def rows(study: Study, results: Mapping[CellKey, CellResult]) -> list[dict[str, Any]]:
    """A row of differences.csv for every row except the reference, and every column.

    Trivial predictions are in none: they are no methods, and would be among the comparisons that p is corrected for.
    """
    lines: list[dict[str, Any]] = []
    for table in study.tables:
        for column in table.columns if table.reference else ():
            first = table.at(table.reference, column)
            for row in table.rows:
                second = table.at(row, column)
                if row == table.reference or first is None or second is None or second.measure.trivial:
                    continue
                pair = (
                    collect.values(results[table.title, cell.row, column], cell.measure) for cell in (first, second)
                )
                if difference := statistics.paired(*pair):
                    names = dict(zip(('mean', 'standard_error', 'pairs', 'p'), difference, strict=True))
                    names |= dict(zip(('low', 'high'), difference.interval, strict=True))
                    places = {'table': table.title, 'column': column, 'row': table.reference, 'minus': row}
                    unit = collect.KINDS[first.measure.kind].unit
                    lines.append({**places, 'unit': unit, **names, 'deviation': difference.deviation})
    for table in study.tables:
        of_table = [line for line in lines if line['table'] == table.title]
        for line, p in zip(of_table, statistics.corrected([line['p'] for line in of_table]), strict=True):
            line['p_corrected'] = p
    return lines


def grid(table: Table, differences: Rows) -> Grid | None:
    """The differences of a table, among the `rows` of its study: the reference minus each other row; None if there are
    none."""
    found = {(line['minus'], line['column']): line for line in differences if line['table'] == table.title}
    if not found:
        return None
    lines = []
    for row in dict.fromkeys(cell.row for cell in table.cells if not cell.measure.trivial):
        if row != table.reference:
            lines.append((row, *(_difference(found.get((row, column))) for column in table.columns)))
    return Grid((table.row_name, *table.columns), tuple(lines))


def _difference(difference: Mapping[str, Any] | None) -> str:
    if difference is None:
        return NOTHING
    if difference['pairs'] < statistics.FEWEST:
        return f'{NOTHING} ({difference["pairs"]})'
    p = f'p = {difference["p_corrected"]:.2g}' if math.isfinite(difference['p_corrected']) else 'no test'
    mean, low, high = (number(difference[name], difference['unit'], '+') for name in ('mean', 'low', 'high'))
    return f'{mean} [{low}, {high}], {p} ({difference["pairs"]})'


def power_beforehand(study: Study, results: Mapping[CellKey, CellResult]) -> str:
    """How many seeds a difference of a point needs, before the missing runs are made; '' if nothing is known of it.

    From the runs that are there, if three seeds of some comparison are, else from the pilot of the study.
    """
    differences = rows(study, results)
    spreads = [spread for table in study.tables for spread in _spreads(table, differences)]
    if spreads:
        deviation, source = float(np.median(spreads)), 'the runs that are there'
    elif study.pilot:
        deviation, source = study.pilot
    else:
        return ''
    seeds = {len(cell.config.seeds) or 1 for cell in study.cells()}
    has = ' to '.join(dict.fromkeys((str(min(seeds)), str(max(seeds)))))
    return (
        f'power: differences of pairs spread by {deviation:.2f} points ({source}), so a difference of one point needs '
        f'{statistics.seeds_needed(deviation)} seeds; the study has {has}'
    )


def power(table: Table, differences: Rows) -> list[str]:
    """How many seeds a difference of a point needs in a table; nothing where differences are not percentages."""
    spreads = _spreads(table, differences)
    if not spreads:
        return []
    middle, largest = float(np.median(spreads)), max(spreads)
    return [
        f'The differences of pairs have a standard deviation of {middle:.2f} points in the median and {largest:.2f} at '
        f'most. To find a difference of one point with a probability of {100 * statistics.POWER:g} % at a level of '
        f'{100 * statistics.LEVEL:g} %, one comparison needs {statistics.seeds_needed(middle)} seeds in the median and '
        f'{statistics.seeds_needed(largest)} at most.'
    ]


def _spreads(table: Table, differences: Rows) -> list[float]:
    """Standard deviations of the differences in percentages, in points, of those with enough seeds."""
    return [
        row['deviation']
        for row in differences
        if row['table'] == table.title and row['unit'] == '%' and row['pairs'] >= statistics.FEWEST
    ]


def number(value: float, unit: str, sign: str = '') -> str:
    """Two decimals for percentages, three significant digits for anything else."""
    digits = '.2f' if unit == '%' else '.3g'
    return format(value, sign + digits) if math.isfinite(value) else NOTHING
