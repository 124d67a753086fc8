"""What a study is: tables of cells, each the run of a configuration beside the number that the paper has for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib

SCALES = ('smoke', 'cpu', 'full')


class Paper(NamedTuple):
    """What the paper reports, in the unit of the measure."""

    mean: float
    error: float | None = None  # standard error, where it is given


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
    base: str = ''  # file in configs/ without .py
    config: ConfigDict | None = None  # complete; None: this scale has no run for it
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # flat: what makes `config` of the base
    paper: Paper | None = None
    measure: Measure = ACCURACY


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells under one title; rows and columns stand in the order in which cells name them first."""

    title: str
    cells: tuple[Cell, ...]
    row_name: str = 'Method'
    reference: str = ''  # row that all others are compared with over shared seeds; '': no comparison
    figures: tuple[str, ...] = ('values',)  # names of `figures.NAMES`

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


def cell(
    row: str,
    column: str,
    base: str,
    config: ConfigDict,
    unchanged: ConfigDict,
    paper: Paper | None = None,
    measure: Measure = ACCURACY,
) -> Cell:
    """A cell with a run.

    Args:
      row, column: its place.
      base: file in configs/ without .py.
      config: of its run.
      unchanged: what that file gives; the differences are what the command of the run has to say.
      paper: the paper's number.
      measure: what is read off the run.
    """
    before, after = flat(unchanged), flat(config)
    changes = {key: value for key, value in after.items() if before[key] != value}
    return Cell(row, column, base, config, changes, paper, measure)


def flat(config: ConfigDict) -> dict[str, Any]:
    """As `config.flatten`, with tuples for the lists that JSON has."""
    found = config_lib.flatten(config).items()
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found}
