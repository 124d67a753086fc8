"""Definition of a study: tables of cells, each a configuration to run and the corresponding number of the paper."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax.base.errors import UserError, use_one_of

# Keys of a study's configuration, beside those of its runs
OWN_KEYS = ('study_rows', 'study_columns', 'study_tuned', 'study_untuned')
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
    trivial: str = ''  # one of `tasks.TRIVIAL_NAMES`: of that prediction in dense tasks, in place of the models


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
        """The paper's number, None unless the run has the paper's data and is of the method itself (`pseudo_labels`).

        Other data are another set or label count, synthetic images, or fewer for training because some are held out. A
        number that says what `differs` is for any count.
        """
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
    figures: tuple[str, ...] = ('values',)  # names of `figures.FIGURES`
    caption: str = ''  # sentences added after the description of the numbers

    @property
    def rows(self) -> list[str]:
        """The titles of the rows in the order of the cells, as are the columns."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        """The titles of the columns."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def at(self, row: str, column: str) -> Cell | None:
        """Returns the cell of a row and a column, None if there is none."""
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
        """Yields all cells, table after table."""
        for table in self.tables:
            yield from table.cells

    def part(self, rows: Sequence[str], columns: Sequence[str]) -> Study:
        """Restricts the study to some rows and columns, under another name if a cell is left out.

        A gain over a row that is left out is left out, too, and where other tables compare rows, a table that has only
        the row to compare with.

        Args:
          rows: titles of rows, (): all.
          columns: titles of columns, (): all.

        Returns:
          The part.

        Raises:
          UserError: no table has a row or column, or no cell is left.
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
        places = [[table.title, cell.row, cell.column] for table in tables for cell in table.cells]
        mark = hashlib.sha256(json.dumps(places).encode()).hexdigest()[:6]
        name = self.name if len(places) == len(list(self.cells())) else f'{self.name}-part-{mark}'
        tables = [table for table in tables if not compared or len(table.rows) > 1 or not table.reference]
        return dataclasses.replace(self, name=name, tables=tuple(tables))


def named(words: Sequence[str], names: Iterable[str], what: str) -> list[str]:
    """Returns the names that a user chose.

    Args:
      words: names, of which one may have several between commas; (): all.
      names: the known ones.
      what: names them in the error.

    Raises:
      UserError: a name is unknown.
    """
    known = list(dict.fromkeys(names))
    chosen = [name for word in words for name in ([word] if word in known else map(str.strip, word.split(',')))]
    if unknown := [name for name in chosen if name not in known]:
        raise UserError(f"'{unknown[0]}' is not {what}; {use_one_of(unknown[0], known)}")
    return chosen or known


def as_config(config: ConfigDict, study: Study) -> ConfigDict:
    """Returns what a file in configs/studies returns: a study with a configuration, whose keys change in all runs.

    Args:
      config: the configuration, changed in place.
      study: the study.
    """
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
    """Makes a cell, whose command has the differences between two configurations as options.

    Args:
      row: title of its row.
      column: title of its column.
      base: file in configs/ without .py, or the path of another one with it.
      config: the configuration of the run.
      unchanged: that of the file `base`.
      published: the paper's number.
      measure: what is read off the run.
    """
    old, new = sfl.flat(unchanged), sfl.flat(config)
    changes = {key: value for key, value in new.items() if old[key] != value}
    return Cell(row, column, base, config, changes, published, measure)


def changed(cell: Cell, values: Mapping[str, Any], kept: Collection[str] = ()) -> Cell:
    """Changes the configuration of a cell.

    Args:
      cell: the cell.
      values: by dotted key.
      kept: keys that stay in its command in any case: those that a user gave.

    Raises:
      UserError: the method lacks the setting that `values` ask for.
    """
    config = cell.config.copy_and_resolve_references().unlock()
    old = sfl.flat(config)
    config.update_from_flattened_dict(dict(values))
    if kept:
        sfl.apply_setting(config, given=kept)
    changes = {
        key: value
        for key, value in sfl.flat(config).items()
        if (value != old[key] or key in cell.changes or key in kept) and key != 'official_keys'
    }
    encoder = cell.encoder and changed(cell.encoder, values, kept)
    return dataclasses.replace(cell, config=config.lock(), changes=changes, encoder=encoder)


def with_changes(study: Study, values: Mapping[str, Any]) -> Study:
    """Changes keys in all runs of a study.

    Args:
      study: the study.
      values: by dotted key.

    Raises:
      UserError: cells differ in one of the keys, or a method lacks the setting.
    """
    cells = [each for cell in study.cells() for each in (cell, cell.encoder) if each]
    for key in values:
        present = sorted({json.dumps(sfl.flat(cell.config)[key]) for cell in cells})
        if len(present) > 1:
            differing = f'is not the same in all runs of {study.name}:{study.scale} ({", ".join(present)})'
            raise UserError(f'config.{key} {differing}; omit it')
        if key == 'seed':
            raise UserError(f'config.{key} cannot be changed in a study; write --config.seeds=0,1,2')
    if not values:
        return study
    tables = (
        dataclasses.replace(table, cells=tuple(changed(cell, values, values.keys()) for cell in table.cells))
        for table in study.tables
    )
    return dataclasses.replace(study, tables=tuple(tables))
