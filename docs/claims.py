"""What the results in results/ say of the claims of the papers in docs/claims.toml.

docs/claims.toml has the claims, each with the study and the rows that test it. Here are differences, their intervals
and tests, and verdicts; docs/reproduction.py writes the page. Nothing is trained.
"""

from __future__ import annotations

import csv
import io
import math
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, did_you_mean, use_one_of
from semisfl_jax.lab.studies import spec, statistics

STUDIES = Path(__file__).resolve().parent.parent / 'configs/studies'
SMALL = {'points': 0.5, 'ratio': 0.05}  # differences within it are none: half a point, 5 %
HOLDS, OPPOSITE, NONE, OPEN = 'holds', 'the opposite', 'no difference', 'undetermined'
FEW = 'too few seeds reached it'  # an accuracy, in a claim of what is needed for it
KINDS = (HOLDS, OPPOSITE, NONE, OPEN, FEW)
EXPECTED = ('above', 'below', 'same')
NEEDED = ('name', 'paper', 'where', 'study', 'table', 'expect')  # keys of a claim
WHICH = ('tuned', 'part', 'beside', 'options')  # results of its study
TEXTS = (*NEEDED, *WHICH, 'words', 'numbers', 'row', 'unit', 'learned', 'figure', 'alt')
PAIRS = ('rows', 'column_pairs')
NOT_OURS = 'does not hold what a study writes; restore it from a copy, or repeat the command of the study'


class Place(NamedTuple):
    """A cell of a table in results/."""

    row: str
    column: str
    measure: str
    target: str


class Comparison(NamedTuple):
    """Two cells of a claim, over the seeds that both have."""

    first: Place
    second: Place
    mean: float  # points; or the ratio of geometric means minus 1; NaN if the seeds of both are too few
    low: float  # of the 95 % interval of that
    high: float
    seeds: int
    p: float  # two-sided, corrected for the comparisons of the claim by Holm's method
    verdict: str


class Judged(NamedTuple):
    """A claim of claims.toml with what the results say of it; no comparisons if the study has not been run."""

    claim: dict[str, Any]
    comparisons: list[Comparison]
    folder: Path | None = None  # of the results; None if the study has not been run

    @property
    def verdict(self) -> str:
        counts = {kind: [c.verdict for c in self.comparisons].count(kind) for kind in KINDS}
        found = {kind: count for kind, count in counts.items() if count}
        if not found:
            return 'not run yet'
        if len(found) == 1:
            return 'does not hold: the opposite' if OPPOSITE in found else next(iter(found))
        return ', '.join(f'{kind} in {count}' for kind, count in found.items()) + f' of {len(self.comparisons)}'


def judge(difference: statistics.Difference, p: float, expect: str, unit: str) -> str:
    """The verdict on one comparison.

    Args:
      difference: of what the claim says is larger (`expect` 'above'), smaller ('below') or the same ('same'), in points
        or, for ratios, of logarithms.
      p: corrected.
      expect: see above, one of EXPECTED.
      unit: 'points' or 'ratio'.
    """
    small = math.log1p(SMALL[unit]) if unit == 'ratio' else SMALL[unit]
    low, high = difference.interval
    none = low > -small and high < small
    if expect == 'same':
        return HOLDS if none else OPPOSITE if p < statistics.LEVEL else OPEN
    signed = difference.mean if expect == 'above' else -difference.mean
    if p < statistics.LEVEL:
        return HOLDS if signed > 0 else OPPOSITE
    return NONE if none else OPEN


def read(file: Path) -> tuple[str, list[dict[str, Any]]]:
    """The introduction and the claims of a file like claims.toml.

    Raises:
      UserError: it cannot be read, or a claim lacks a key, or has one that nothing reads or with a wrong value.
    """
    try:
        content = tomllib.loads(file_io.read(file).decode())
    except ValueError as error:  # not UTF-8, or not TOML
        raise UserError(f'{file} is not TOML ({error}); correct it') from error
    intro, claims = content.get('intro'), content.get('claim')
    if not isinstance(intro, str) or not isinstance(claims, list) or not all(isinstance(item, dict) for item in claims):
        raise UserError(f"{file} needs a text `intro` and claims, each under a line '[[claim]]'; add them")
    for number, claim in enumerate(claims, 1):
        if fault := _fault(claim):
            raise UserError(f'{file}, claim {number}, {claim.get("name", "without a name")!r}: {fault}')
    return intro, claims


def _fault(claim: dict[str, Any]) -> str:
    """What is wrong with a claim by itself, '' if nothing."""
    known = (*TEXTS, *PAIRS, 'columns')
    for key, value in claim.items():
        if key not in known:
            return f'{key!r} is not a key of a claim{did_you_mean(key, known) or "; leave it out"}'
        if key in TEXTS and not isinstance(value, str):
            return f'{key}={value!r} is not a text; write it in quotes'
        if key == 'columns' and not _texts(value):
            return f"columns={value!r} is not a list of columns; write ['…', '…']"
        if key in PAIRS and not (isinstance(value, list) and all(_texts(pair) and len(pair) == 2 for pair in value)):
            return f"{key}={value!r} is not a list of pairs; write [['…', '…'], …]"
    if lacking := [key for key in NEEDED if key not in claim]:
        return f'{lacking[0]!r} is missing; add it'
    for key, value, choices in (('expect', claim['expect'], EXPECTED), ('unit', unit_of(claim), SMALL)):
        if value not in choices:
            return f'{key}={value!r} is unknown; {use_one_of(value, choices)}'
    name, _, scale = claim['study'].partition(':')
    studies = [file.stem for file in STUDIES.glob('*.py')]
    if name not in studies or scale not in spec.SCALES:
        near = did_you_mean(name, studies) if name not in studies else ''
        return f'study={claim["study"]!r} is not NAME:SCALE of a file in configs/studies; correct it{near}'
    if not any(claim.get(key) for key in PAIRS) or ('column_pairs' in claim and 'row' not in claim):
        return 'there is nothing to compare; give pairs of `rows`, or `column_pairs` and the `row` that they are in'
    return '`figure` needs `alt`, what it shows; add it' if 'figure' in claim and 'alt' not in claim else ''


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def judged(claim: dict[str, Any], results: Path) -> Judged:
    """What the results say of a claim.

    Raises:
      UserError: the study's results have no such table, row or column, or are not those of a study.
    """
    folder = folder_of(claim, results)
    if not folder:
        return Judged(claim, [])
    table = values(folder, claim['table'])
    for other in beside(claim, results):
        table = values(other, claim['table']) | table
    if not table:
        titles = dict.fromkeys(line['table'] for line in lines_of(folder / 'cells.csv'))
        raise UserError(
            f'{claim["name"]}: {folder.name} has no table {claim["table"]!r}; {use_one_of(claim["table"], titles)}'
        )
    pairs = list(_pairs(claim, table))
    found = [_difference(claim, *(table[place] for place in pair)) for pair in pairs]
    if not pairs or not all(difference or pair[0].target for pair, difference in zip(pairs, found, strict=True)):
        raise UserError(
            f'{claim["name"]}: no pair of runs for a comparison in {folder.name}, {claim["table"]!r}; run more seeds, '
            'or correct the claim'
        )
    p = iter(statistics.corrected([difference.p for difference in found if difference]))
    comparisons = []
    for (first, second), difference in zip(pairs, found, strict=True):
        if not difference:
            seeds = len(table[first].keys() & table[second].keys())
            comparisons.append(Comparison(first, second, *3 * (math.nan,), seeds, math.nan, FEW))
            continue
        corrected = next(p)
        numbers = (difference.mean, *difference.interval)
        if unit_of(claim) == 'ratio':
            numbers = tuple(math.expm1(number) for number in numbers)
        verdict = judge(difference, corrected, claim['expect'], unit_of(claim))
        comparisons.append(Comparison(first, second, *numbers, difference.seeds, corrected, verdict))
    return Judged(claim, comparisons, folder)


def _difference(claim: dict[str, Any], *both: dict[int, float]) -> statistics.Difference | None:
    """Of the seeds that both cells have; None if these are fewer than a table of a report shows the mean of."""
    difference = statistics.paired(*(_scaled(claim, seeds) for seeds in both))
    return difference if difference and difference.seeds >= statistics.FEWEST else None


def folder_of(claim: dict[str, Any], results: Path) -> Path | None:
    """The results of a claim's study, with tuned methods if the claim is of these, or a part of it; None: not there.

    Raises:
      UserError: there are results of several sweeps, or of a part with several seeds or options.
    """
    name, scale = claim['study'].split(':')
    pattern = f'{name}-{scale}*'  # with other seeds, the name of its folder goes on
    if 'part' in claim:
        pattern = f'{name}-part-{claim["part"]}-{scale}*'
    elif 'tuned' in claim:
        pattern = f'{name}-tuned-*-{scale}'
    found = sorted(results.glob(pattern))
    if len(found) > 1:
        names = ', '.join(folder.name for folder in found)
        raise UserError(f'{claim["name"]}: several results, {names}; leave one of them in {results}')
    return found[0] if found else None


def beside(claim: dict[str, Any], results: Path) -> list[Path]:
    """The results of other parts, whose cells a claim has beside those of its own."""
    found = (folder_of({**claim, 'part': part}, results) for part in claim.get('beside', '').split())
    return [folder for folder in found if folder]


@cache
def values(folder: Path, title: str) -> dict[Place, dict[int, float]]:
    """The values of a table by place and seed, from runs.csv; none at a place of cells.csv that has no values.

    Raises:
      UserError: one of these files is missing, or was not written by a study.
    """

    def place(line: dict[str, str]) -> Place:
        return Place(line['row'], line['column'], line['measure'], line['target'])

    found: dict[Place, dict[int, float]] = {
        place(line): {} for line in lines_of(folder / 'cells.csv') if line['table'] == title
    }
    for line in lines_of(folder / 'runs.csv', ('seed', 'value')):
        if line['table'] == title:
            try:
                found[place(line)][int(line['seed'])] = float(line['value'])
            except (KeyError, ValueError) as error:
                raise UserError(f'{folder / "runs.csv"} {NOT_OURS} ({error})') from error
    return found


def lines_of(file: Path, others: Sequence[str] = ()) -> list[dict[str, str]]:
    """The lines of a CSV file that have a place in a table, and `others`."""
    try:
        lines = list(csv.DictReader(io.StringIO(file_io.read(file).decode(), newline='')))
    except (UserError, ValueError, csv.Error) as error:
        raise UserError(f'{file} {NOT_OURS} ({error})') from error
    if not lines or any(line.get(key) is None for line in lines for key in ('table', *Place._fields, *others)):
        raise UserError(f'{file} {NOT_OURS}')
    return lines


def unit_of(claim: dict[str, Any]) -> str:
    return claim.get('unit', 'points')


def _scaled(claim: dict[str, Any], seeds: dict[int, float]) -> dict[int, float]:
    if unit_of(claim) != 'ratio':
        return seeds
    if any(value <= 0 for value in seeds.values()):
        raise UserError(
            f'{claim["name"]}: {claim["table"]!r} has values of 0, which no ratio can be of; leave them out'
        )
    return {seed: math.log(value) for seed, value in seeds.items()}


def _pairs(claim: dict[str, Any], table: dict[Place, Any]) -> Iterator[tuple[Place, Place]]:
    """The pairs of places that a claim compares: of rows in every column (`rows`), or of columns in a row. Where one
    run stands in several columns, a pair whose runs were compared before is left out, or they would count twice."""
    every = list(dict.fromkeys(place.column for place in table))
    columns = claim.get('columns', every) if 'rows' in claim else ()
    places = [((first, column), (second, column)) for column in columns for first, second in claim['rows']]
    places += [((claim['row'], first), (claim['row'], second)) for first, second in claim.get('column_pairs', ())]
    seen: list[Any] = []
    for pair in places:
        first, second = (_place(claim, table, *place) for place in pair)
        if (both := (table[first], table[second])) not in seen:
            yield first, second
        if all(both):
            seen.append(both)


def _place(claim: dict[str, Any], table: dict[Place, Any], row: str, column: str) -> Place:
    found = [place for place in table if (place.row, place.column) == (row, column)]
    if len(found) == 1:
        return found[0]
    for kind, name in (('row', row), ('column', column)):
        names = dict.fromkeys(getattr(place, kind) for place in table)
        if name not in names:
            raise UserError(f'{claim["name"]}: {claim["table"]!r} has no {kind} {name!r}; {use_one_of(name, names)}')
    raise UserError(f'{claim["name"]}: {len(found)} cells {row!r}, {column!r} in {claim["table"]!r}; name others')
