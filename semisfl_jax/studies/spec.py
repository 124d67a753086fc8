"""What a study is: tables of cells, each the run of a configuration, and the number that the paper has for it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.errors import UserError
from semisfl_jax.wording import did_you_mean

SCALES = ('smoke', 'cpu', 'full')


class Paper(NamedTuple):
    """What the paper reports, in the unit of the measure, and the data that it is of."""

    mean: float
    error: float | None  # standard error, where it is given
    data: str  # config.data.name
    labels: int  # config.data.num_labeled


class Measure(NamedTuple):
    """What is read off a run: `kind` is a name of `collect.KINDS`."""

    kind: str = 'accuracy'
    target: float = 0.0  # accuracy, a share in [0, 1], of the kinds that ask for the way to it


ACCURACY = Measure()


@dataclasses.dataclass(frozen=True)
class Cell:
    """One place in a table."""

    row: str
    column: str
    base: str  # file in configs/ without .py
    config: ConfigDict  # complete
    changes: Mapping[str, Any]  # flat: what makes `config` of the base
    published: Paper | None = None  # the paper's number in this place of its table, whatever the run is trained on
    measure: Measure = ACCURACY

    @property
    def paper(self) -> Paper | None:
        """The paper's number, None where the run has other data: another set, other labels, or made-up images."""
        data, theirs = self.config.data, self.published
        same = theirs is not None and (data.name, data.num_labeled) == (theirs.data, theirs.labels) and not data.fake
        return theirs if same else None


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells under one title; rows and columns stand in the order in which cells name them first."""

    title: str
    cells: tuple[Cell, ...]
    row_name: str = 'Method'
    reference: str = ''  # row that all others are compared with over shared seeds; '': no comparison
    figures: tuple[str, ...] = ('values',)  # names of `figures.NAMES`
    caption: str = ''  # sentences that follow on what the numbers are

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def at(self, row: str, column: str) -> Cell | None:
        """The cell of a row and a column, None where the table has none."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)


@dataclasses.dataclass(frozen=True)
class Study:
    """A table or figure of the paper at one scale."""

    name: str
    scale: str  # of SCALES
    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    warning: str = ''  # what stands on every page: that data and scale are not the paper's

    def cells(self) -> Iterator[Cell]:
        """All cells, table after table."""
        for table in self.tables:
            yield from table.cells

    def part(self, rows: Collection[str], columns: Collection[str]) -> Study:
        """The study of some rows and columns of its tables, under a name of its own if any is left out.

        Raises:
          UserError: a row or column that no table has, or nothing is left.
        """
        for kind, asked in {'row': rows, 'column': columns}.items():
            known = list(dict.fromkeys(getattr(cell, kind) for cell in self.cells()))
            for name in asked:
                if name not in known:
                    raise UserError(
                        f'{self.name} has no {kind} {name!r}; choose from {", ".join(known)}{did_you_mean(name, known)}'
                    )
        tables = []
        for table in self.tables:
            kept = tuple(cell for cell in table.cells if cell.row in rows and cell.column in columns)
            reference = table.reference if table.reference in rows else ''
            tables += [dataclasses.replace(table, cells=kept, reference=reference)] if kept else []
        if not tables:
            raise UserError(f'{self.name} has no cell in these rows and columns')
        part = dataclasses.replace(self, tables=tuple(tables))
        places = [[table.title, cell.row, cell.column] for table in tables for cell in table.cells]
        if len(places) == len(list(self.cells())):
            return part
        mark = hashlib.sha256(json.dumps(places).encode()).hexdigest()[:6]
        return dataclasses.replace(part, name=f'{self.name}-part-{mark}')


def cell(
    row: str,
    column: str,
    base: str,
    config: ConfigDict,
    unchanged: ConfigDict,
    published: Paper | None = None,
    measure: Measure = ACCURACY,
) -> Cell:
    """A cell of a run.

    Args:
      row, column: its place.
      base: file in configs/ without .py.
      config: of its run.
      unchanged: what that file gives; the differences are what the command of the run has to say.
      published: the paper's number.
      measure: what is read off the run.
    """
    before, after = flat(unchanged), flat(config)
    changes = {key: value for key, value in after.items() if before[key] != value}
    return Cell(row, column, base, config, changes, published, measure)


def flat(config: ConfigDict) -> dict[str, Any]:
    """As `config.flatten`, with tuples for the lists that JSON has."""
    found = config_lib.flatten(config).items()
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found}
