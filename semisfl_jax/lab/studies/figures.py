"""Draws the figures of a study.

Those that its tables can have are FIGURES. A study may add one in its own file, of the runs of a column, and name it in
its tables:

    def draw(groups, kind):  # {row: {seed: run}} of all rows, and the kind of the column's measure
        drawing, ax = style.figure()
        ...
        return drawing, ''  # what to add to the caption

    figures.FIGURES['mine'] = figures.Entry('What it shows', figures.by_column(draw))
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import semisfl_jax as sfl
from semisfl_jax import tasks
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab import plots
from semisfl_jax.lab.plots import collect, curves, style
from semisfl_jax.lab.plots.collect import Groups
from semisfl_jax.lab.plots.curves import Curve
from semisfl_jax.lab.studies.document import Figure
from semisfl_jax.lab.studies.measures import KINDS, Cells
from semisfl_jax.lab.studies.spec import Cell, Study, Table
from semisfl_jax.tasks import Score

POINTS = 150  # of a curve of scores, at most
PANEL_POINTS = 60  # in a small panel
DPI = 200  # of the pictures of reports

Drawn = Iterator[tuple[str, str, Any]]  # end of the file's name, end of the caption, drawing of Matplotlib


class Entry(NamedTuple):
    """A figure that a table can have."""

    caption: str
    draw: Callable[[Table, Cells], Drawn]  # of what the finished runs have the data for


def figure(name: str, part: str, caption: str, drawing: Any) -> Figure:
    """Makes a drawing of Matplotlib a part of a report; the arguments are those of `document.Figure`."""
    return Figure(name, part, caption, style.content(drawing, 'png', DPI), style.content(drawing, 'svg', DPI))


def slug(text: str) -> str:
    """Returns a title as a part of a file name."""
    return '-'.join(''.join(x if x.isalnum() or x == '.' else ' ' for x in text).split())


def draw(study: Study, results: Cells) -> Iterator[Figure]:
    """Draws all figures of a study that its finished runs have the data for, in the order of its tables."""
    warning = f'. {study.warning.split(":")[0].rstrip(".")}.' if study.warning else ''
    with style.context():
        for number, table in enumerate(study.tables, 1):
            for name in table.figures:
                for ending, title, drawing in FIGURES[name].draw(table, results):
                    stem = '-'.join(filter(None, (str(number), name, ending)))
                    yield figure(stem, table.title, f'{FIGURES[name].caption}{title}{warning}', drawing)


def by_column(draw: Callable[[Groups, str], tuple[Any, str]], by_kind: bool = False) -> Callable[[Table, Cells], Drawn]:
    """Makes the figure of a table from that of a column: one for each, or for all that are of the same runs.

    Args:
      draw: runs by row and seed, {} for rows without any, and the kind of the column's measure -> drawing, and the end
        of its caption. It raises UserError if no run has the data.
      by_kind: whether columns of the same runs are drawn for each kind of measure.
    """

    def drawn(table: Table, results: Cells) -> Drawn:
        done = set()
        for column in table.columns:
            cells = {cell.row: results[table.title, cell.row, column] for cell in table.cells if cell.column == column}
            groups = {row: dict(cells[row].runs) if row in cells else {} for row in table.rows}  # all, for their looks
            kind = next(cell.measure.kind for cell in table.cells if cell.column == column)
            source = (by_kind and kind, *(str(run.folder) for runs in groups.values() for run in runs.values()))
            if source in done or not any(groups.values()):
                continue
            done.add(source)
            try:
                drawing, note = draw(groups, kind)
            except UserError:  # no run recorded this quantity
                continue
            title = re.split(' to |, T = ', column)[0] if table.cells[0].measure.target else column
            yield slug(title), f', {title}{note}', drawing

    return drawn


def _values(table: Table, results: Cells) -> Drawn:
    """Draws a figure for each kind of measure, or group of them, with the columns in which a cell has a value."""
    by_quantity: dict[str, list[Cell]] = {}
    for cell in table.cells:
        by_quantity.setdefault(KINDS[cell.measure.kind].group or cell.measure.kind, []).append(cell)
    for quantity, cells in by_quantity.items():
        values = {(cell.row, cell.column): results[table.title, cell.row, cell.column].values for cell in cells}
        measured = {column for (_, column), by_seed in values.items() if by_seed}
        columns = [column for column in table.columns if column in measured]
        cells = [cell for cell in cells if cell.column in measured]
        if not cells:
            continue
        rows = {cell.row: np.full((3, len(columns)), np.nan) for cell in cells}
        for cell in cells:
            numbers = rows[cell.row][:, columns.index(cell.column)]
            if by_seed := values[cell.row, cell.column]:
                numbers[:2] = sfl.mean_and_error(list(by_seed.values()))
            numbers[2] = cell.paper.mean if cell.paper else np.nan
        drawing, ax = style.figure(width='page' if len(columns) > 2 else 'column', height=2.8)
        kind = KINDS[cells[0].measure.kind]
        title = kind.group or kind.title
        curves.table(ax, columns, rows, f'{title[0].upper()}{title[1:]} ({kind.unit})')
        ending = quantity.replace(' ', '-') if len(by_quantity) > 1 else ''
        yield ending, ', hollow: the paper' if any(cell.paper for cell in cells) else '', drawing


def _scores(groups: Groups, kind: str, x: str = 'round', of_task: bool = False) -> tuple[Any, str]:
    """Draws the headline's score, or that of the task of the column's measure."""
    task = tasks.split_key(kind) if of_task else None
    if of_task and task is None:
        raise UserError(f'{kind} is not a score of a task')
    score = task.score if task else collect.score(groups)
    lines = collect.curves(groups, kind if task else collect.SCORE, x)
    shown = curves.levels([curves.binned(curve, POINTS) for curve in lines])
    drawing, ax = style.figure()
    curves.score(ax, shown, x, score)
    _ignore_first_tenth_in_ylim([ax], shown, score)
    return drawing, _averaged(lines, POINTS)


def _prices(groups: Groups, _: str) -> tuple[Any, str]:
    """Draws a panel for each of rounds, traffic and time, on one axis of scores."""
    drawing, axes = style.figure(1, 3, width='page', height=2.5)
    score, shown = collect.score(groups), []
    first = collect.curves(groups, collect.SCORE, 'round')
    for ax, x in zip(axes, curves.X_LABELS, strict=True):
        lines = [curves.binned(curve, PANEL_POINTS) for curve in collect.curves(groups, collect.SCORE, x)]
        curves.lines(ax, lines := curves.levels(lines), scale=score.scale)
        ax.set_xlabel(curves.X_LABELS[x])
        shown += lines
    _ignore_first_tenth_in_ylim(axes, shown, score)
    axes[0].set_ylabel(f'Test {score.axis}')
    style.legend(drawing)
    return drawing, _averaged(first, PANEL_POINTS)


def _loss(groups: Groups, _: str) -> tuple[Any, str]:
    drawing, ax = style.figure()
    curves.against(ax, collect.curves(groups, tasks.GLOBAL_LOSS), 'Training loss')
    return drawing, ''


def _spread(groups: Groups, _: str) -> tuple[Any, str]:
    drawing, ax = style.figure()
    lines, score = collect.curves(groups, collect.SPREAD), collect.score(groups)
    curves.against(ax, lines, f'Deviation of the {score.axis}', scale=score.scale, from_zero=True)
    return drawing, ''


def _averaged(lines: Sequence[Curve], points: int) -> str:
    """Returns what a caption says of curves that are drawn with so many points at most."""
    return ' (each point the mean of several evaluations)' if any(len(curve.x) > points for curve in lines) else ''


def _ignore_first_tenth_in_ylim(axes: Sequence[Any], shown: Sequence[Curve], score: Score) -> None:
    """Sets the limits of axes of scores by what follows the first tenth of the rounds.

    That tells methods apart by nothing but their first steps.
    """
    bands = [band for curve in shown for band in (curve.mean, curve.low, curve.high)]
    values = score.scale * np.concatenate([band[len(band) // 10 :] for band in bands])
    low, high = np.nanmin(values), np.nanmax(values)
    margin = 0.05 * (high - low) or 1.0
    for ax in axes:
        ax.set_ylim(low - margin, high + margin)


FIGURES = {
    'values': Entry('All values with standard errors', _values),
    'accuracy_rounds': Entry('Test accuracy against rounds', by_column(_scores)),
    'score_rounds': Entry(
        "A task's score on the test set against rounds", by_column(partial(_scores, of_task=True), by_kind=True)
    ),
    'accuracy_gigabytes': Entry('Test accuracy against traffic', by_column(partial(_scores, x='gigabytes'))),
    'accuracy_minutes': Entry('Test accuracy against simulated time', by_column(partial(_scores, x='minutes'))),
    'accuracy_prices': Entry(
        'Test accuracy against rounds, traffic and simulated time (level: a method without traffic)', by_column(_prices)
    ),
    'k_s': Entry(
        'Supervised steps per round', by_column(lambda groups, _: (plots.draw.FIGURES['k_s'].draw(groups), ''))
    ),
    'loss_rounds': Entry("The clients' objective at the server's model, F, against rounds", by_column(_loss)),
    'spread_rounds': Entry('Standard deviation of the test accuracy over seeds', by_column(_spread)),
}
