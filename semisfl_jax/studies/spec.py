"""Definition of a study: tables of cells, each a configuration to run and the corresponding number of the paper.

`check` finds what is wrong with one by itself, before its first run; `plan.check` checks the configurations.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax.config import keys
from semisfl_jax.core.errors import UserError, found, use_one_of
from semisfl_jax.studies.measures import KINDS

# Keys of a study's configuration, beside those of its runs
OWN_KEYS = ('study_rows', 'study_columns', 'study_tuned', 'study_untuned')
FIGURES = {
    'values': 'All values with standard errors',
    'accuracy_rounds': 'Test accuracy against rounds',
    'score_rounds': "A task's score on the test set against rounds",
    'accuracy_gigabytes': 'Test accuracy against traffic',
    'accuracy_minutes': 'Test accuracy against simulated time',
    'accuracy_prices': 'Test accuracy against rounds, traffic and simulated time (level: a method without traffic)',
    'k_s': 'Supervised steps per round',
    'loss_rounds': "The clients' objective at the server's model, F, against rounds",
    'spread_rounds': 'Standard deviation of the test accuracy over seeds',
}
SCALES = ('smoke', 'cpu', 'digits', 'mnist', 'cifar', 'long', 'one_round', 'full')  # a study need not have all


class Paper(NamedTuple):
    """What the paper reports, in the unit of the measure, and the data that it used."""

    mean: float
    error: float | None  # standard error, if given
    data: str  # config.data.name
    labels: int | None  # config.data.num_labeled; None: it had a truth for all images
    deviation: float | None = None  # standard deviation over its runs, if that is what it gives
    decimals: int | None = None  # of a percentage as printed; None: one, or two with deviations
    differs: str = ''  # what it was measured with, where that is not the run's labels and model


class Measure(NamedTuple):
    """The quantity read from a run: `kind` is a name of `measures.KINDS`."""

    kind: str = 'accuracy'
    target: float = 0.0  # accuracy to reach, a share in [0, 1], for kinds that measure the cost until then
    reference: str = ''  # row of the same column whose run of the same seed it is a gain over, for 'delta_m'
    trivial: str = ''  # one of `evaluation.TRIVIAL_NAMES`: of that prediction in dense tasks, in place of the models


ACCURACY = Measure()
LATE_ACCURACY = Measure('late_accuracy')  # for runs that have converged: less noise than one evaluation has


class Pilot(NamedTuple):
    """How much the differences of pairs of runs spread, seen before a study has any."""

    deviation: float  # standard deviation over seeds, in points
    source: str  # what it was measured on, in words


@dataclasses.dataclass(frozen=True)
class Cell:
    """One place in a table."""

    row: str
    column: str
    base: str  # file in configs/ without .py, or the path of another one with it
    config: ConfigDict  # complete
    changes: Mapping[str, Any]  # flat key -> value: differences of `config` from the base
    published: Paper | None = None  # the paper's number for this cell, regardless of the data of the run
    measure: Measure = ACCURACY
    encoder: Cell | None = None  # of the run that is made first, and with whose encoder this one starts

    @property
    def paper(self) -> Paper | None:
        """The paper's number, None if the run has different data: another set or label count, synthetic images, or
        fewer for training because some are held out; or if it is not the method itself (`pseudo_labels`). A number that
        says what `differs` is for any count."""
        data, published = self.config.data, self.published
        if published is None or data.name != published.data or data.fake or data.num_validation:
            return None
        if self.config.pseudo_labels != 'method':
            return None
        all_of_it = published.labels is None and not data.num_unlabeled and not any(data.images_of_tasks)
        return published if published.differs or all_of_it or data.num_labeled == published.labels else None


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells under one title; rows and columns are in order of first appearance in the cells."""

    title: str
    cells: tuple[Cell, ...]
    row_name: str = 'Method'
    reference: str = ''  # row that all others are compared with over shared seeds; '': no comparison
    figures: tuple[str, ...] = ('values',)  # names of FIGURES
    caption: str = ''  # sentences added after the description of the numbers

    @property
    def rows(self) -> list[str]:
        """In the order of the cells, as are the columns."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def at(self, row: str, column: str) -> Cell | None:
        """The cell of a row and a column, None if there is none."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)


@dataclasses.dataclass(frozen=True)
class Study:
    """A table or figure of the paper at one scale."""

    name: str  # with the scale that of its folder: letters, digits, '_', '-' and '.'
    scale: str  # of SCALES
    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    warning: str = ''  # repeated throughout the report: data and scale differ from the paper's
    pilot: Pilot | None = None  # for the number of seeds that a difference of a point needs, before any run

    def cells(self) -> Iterator[Cell]:
        """All cells, table after table."""
        for table in self.tables:
            yield from table.cells

    def part(self, rows: Sequence[str], columns: Sequence[str]) -> Study:
        """The study restricted to some rows and columns, (): all, under a different name if any cell is left out; a
        gain over a row that is left out is left out, too, and where other tables compare rows, a table that has only
        the row to compare with. UserError: no table has a row or column, or no cell is left.
        """
        rows = named(rows, (cell.row for cell in self.cells()), f'a row of {self.name}')
        columns = named(columns, (cell.column for cell in self.cells()), f'a column of {self.name}')
        tables = []
        for table in self.tables:
            chosen = (cell for cell in table.cells if cell.row in rows and cell.column in columns)
            cells = tuple(cell for cell in chosen if cell.measure.reference in ('', *rows))
            reference = table.reference if table.reference in rows else ''
            tables += [dataclasses.replace(table, cells=cells, reference=reference)] if cells else []
        if not tables:
            raise UserError(f'{self.name} has no cell in these rows and columns')
        compared = max(len(table.rows) for table in tables) > 1
        kept = tuple(table for table in tables if not compared or len(table.rows) > 1 or not table.reference)
        part = dataclasses.replace(self, tables=kept)
        places = [[table.title, cell.row, cell.column] for table in tables for cell in table.cells]
        if len(places) == len(list(self.cells())):
            return part
        mark = hashlib.sha256(json.dumps(places).encode()).hexdigest()[:6]
        return dataclasses.replace(part, name=f'{self.name}-part-{mark}')


def named(words: Sequence[str], names: Iterable[str], what: str) -> list[str]:
    """Those of `names` that the user gave as `words`, of which one may have several between commas; (): all. UserError:
    a name is unknown, `what` it should be."""
    known = list(dict.fromkeys(names))
    found = [name for word in words for name in ([word] if word in known else map(str.strip, word.split(',')))]
    for name in found:
        if name not in known:
            raise UserError(f"'{name}' is not {what}; {use_one_of(name, known)}")
    return found or known


def as_config(config: ConfigDict, study: Study) -> ConfigDict:
    """What a file in configs/studies returns: `config`, whose keys can be changed in all runs, with the study."""
    with config.unlocked():
        config.study = study
        config.study_rows, config.study_columns = (), ()  # a part of its tables; (): all
        config.study_tuned = ''  # tuned.json of a sweep, or its folder: methods have the settings that it found
        config.study_untuned = False  # with study_tuned: the untuned methods stay, in rows of their own
    return config


def cell(
    row: str,
    column: str,
    base: str,
    config: ConfigDict,
    unchanged: ConfigDict,
    published: Paper | None = None,
    measure: Measure = ACCURACY,
) -> Cell:
    """A cell at a row and a column, with the `config` of its run. Its differences from `unchanged`, the configuration
    of the file `base`, become options of the run's command. The others as in `Cell`."""
    old, new = keys.flat(unchanged), keys.flat(config)
    changes = {key: value for key, value in new.items() if old[key] != value}
    return Cell(row, column, base, config, changes, published, measure)


def check(study: Study) -> None:
    """Raises UserError for the first mistake in the tables of a study."""
    titles = [table.title for table in study.tables]
    for table in study.tables:
        if fault := _fault(table) or ('another table has the same title' if titles.count(table.title) > 1 else ''):
            raise UserError(f'{study.name}:{study.scale}, {table.title}: {fault}')


def _fault(table: Table) -> str:
    """What is wrong with a table, '' if nothing."""
    places = [(cell.row, cell.column) for cell in table.cells]
    if twice := [place for place in places if places.count(place) > 1]:
        return f'it has two cells at {" / ".join(twice[0])}; give each a row or column of its own'
    if table.reference and table.reference not in table.rows:
        return f'its reference {table.reference!r} is not a row; {use_one_of(table.reference, table.rows)}'
    if unknown := [name for name in table.figures if name not in FIGURES]:
        return f'its figure {unknown[0]!r} is unknown; {use_one_of(unknown[0], FIGURES)}'
    for cell in table.cells:
        place = f'{cell.row} / {cell.column}'
        if not isinstance(cell.measure, Measure):
            return f'{place} measures {found(cell.measure)}; write spec.Measure(KIND), or spec.LATE_ACCURACY'
        kind, _, row, _ = cell.measure
        if kind not in KINDS:
            return f'{place} measures {kind!r}, which is unknown; {use_one_of(kind, KINDS)}'
        if row and table.at(row, cell.column) is None:
            return f'{place} is a gain over {row!r}, which has no cell in that column; add it'
    return ''
