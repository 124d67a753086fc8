"""What is wrong with a study by itself, found before its first run: its names, and tables that no report can have."""

from __future__ import annotations

import re

from semisfl_jax.core.errors import UserError
from semisfl_jax.core.wording import use_one_of
from semisfl_jax.studies import collect, figures
from semisfl_jax.studies.spec import Study, Table
from semisfl_jax.training import evaluation

_NAME = re.compile(r'[\w-][\w.-]*')


def check_name(what: str, name: str) -> None:
    """Checks a name that becomes a part of a folder's: with a slash, files would be written elsewhere.

    Args:
      what: it names, for the message: 'a study'.
      name: letters, digits, '_', '-' and '.', not first.

    Raises:
      UserError: it has others.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(
            f"{what} is named {name!r}, which is no name of a folder; use letters, digits, '_', '-' and '.', not first"
        )


def check(study: Study) -> None:
    """Checks a study as its file defines it, apart from the configurations of its cells (`plan.check`).

    Raises:
      UserError: for the first mistake, naming its table.
    """
    check_name('a study', study.name)
    check_name(f'the scale of the study {study.name}', study.scale)
    named, titles = f'{study.name}:{study.scale}', [table.title for table in study.tables]
    if not titles:
        raise UserError(f'{named} has no tables; give it some')
    if twice := [title for title in titles if titles.count(title) > 1]:
        raise UserError(f'{named} has two tables called {twice[0]!r}; give each its own title')
    for table in study.tables:
        if fault := _fault(table):
            raise UserError(f'{named}, {table.title}: {fault}')


def _fault(table: Table) -> str:
    """What is wrong with a table, '' if nothing."""
    if not table.cells:
        return 'it has no cells; give it some, or leave it out'
    places = [(cell.row, cell.column) for cell in table.cells]
    if twice := [place for place in places if places.count(place) > 1]:
        return f'it has two cells at {" / ".join(twice[0])}; give each a row or column of its own'
    if table.reference and table.reference not in table.rows:
        return f'its reference {table.reference!r} is not a row; {use_one_of(table.reference, table.rows)}'
    if isinstance(table.figures, str):
        return f'its figures={table.figures!r} are a text; write ({table.figures!r},)'
    for name in table.figures:
        if name not in figures.NAMES:
            return f'its figure {name!r} is unknown; {use_one_of(name, figures.NAMES)}'
    for cell in table.cells:
        kind, row = cell.measure.kind, cell.measure.reference
        if kind not in collect.KINDS:
            return f'{cell.row} / {cell.column} measures {kind!r}, which is unknown; {use_one_of(kind, collect.KINDS)}'
        if row and table.at(row, cell.column) is None:
            return f'{cell.row} / {cell.column} is a gain over {row!r}, which has no cell in that column; add it'
        named, place = cell.measure.trivial, f'{cell.row} / {cell.column}'
        if named and named not in evaluation.TRIVIAL_NAMES:
            known = use_one_of(named, evaluation.TRIVIAL_NAMES)
            return f'{place} is of {named!r}, which is no trivial prediction; {known}'
        if named and not cell.config.data.tasks:
            return f'{place} is of a trivial prediction, but its runs have no dense tasks (data.tasks)'
    return ''
