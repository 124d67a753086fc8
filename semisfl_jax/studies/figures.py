"""The figures of a study."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from semisfl_jax import tasks
from semisfl_jax.core.errors import UserError
from semisfl_jax.plots import collect as plots_collect
from semisfl_jax.plots import curves, style
from semisfl_jax.plots.curves import Curve
from semisfl_jax.plots.style import Look
from semisfl_jax.studies import collect, statistics
from semisfl_jax.studies.collect import CellKey, CellResult
from semisfl_jax.studies.document import Figure
from semisfl_jax.studies.measures import KINDS
from semisfl_jax.studies.spec import FIGURES, Cell, Study, Table
from semisfl_jax.tasks import Score
from semisfl_jax.training.evaluation import GLOBAL_LOSS

POINTS = 150  # of a curve of scores, at most
PANEL_POINTS = 60  # in a small panel
DPI = 200  # of the pictures of reports

Drawn = Iterator[tuple[str, str, Any]]  # suffix of the file name, title, drawing of Matplotlib


def figure(name: str, part: str, caption: str, drawing: Any) -> Figure:
    """A drawing of Matplotlib as a part of a report."""
    return Figure(name, part, caption, style.content(drawing, 'png', DPI), style.content(drawing, 'svg', DPI))


def slug(text: str) -> str:
    """A title as a part of a file name."""
    return '-'.join(''.join(x if x.isalnum() or x == '.' else ' ' for x in text).split())


def draw(study: Study, results: Mapping[CellKey, CellResult]) -> Iterator[Figure]:
    """All figures of a study that its finished runs have the data for, in the order of its tables."""
    warning = f'. {study.warning.split(":")[0].rstrip(".")}.' if study.warning else ''
    with style.context():
        for number, table in enumerate(study.tables, 1):
            for name in table.figures:
                drawn = _values(table, results) if name == 'values' else _curves(name, table, results)
                for ending, title, drawing in drawn:
                    stem = '-'.join(filter(None, (str(number), name, ending)))
                    yield figure(stem, table.title, f'{FIGURES[name]}{title}{warning}', drawing)


def _values(table: Table, results: Mapping[CellKey, CellResult]) -> Drawn:
    """A figure for each kind of measure, or group of them, with the columns in which a cell of it has a value."""
    by_quantity: dict[str, list[Cell]] = {}
    for cell in table.cells:
        by_quantity.setdefault(KINDS[cell.measure.kind].group or cell.measure.kind, []).append(cell)
    for quantity, cells in by_quantity.items():
        values = {
            (cell.row, cell.column): collect.values(results[table.title, cell.row, cell.column], cell.measure)
            for cell in cells
        }
        columns = list(dict.fromkeys(cell.column for cell in cells))
        columns = [column for column in columns if any(values.get((row, column)) for row in table.rows)]
        cells = [cell for cell in cells if cell.column in columns]
        if not cells:
            continue
        rows = list(dict.fromkeys(cell.row for cell in cells))
        means, errors, published = np.full((3, len(rows), len(columns)), np.nan)
        for cell in cells:
            place = rows.index(cell.row), columns.index(cell.column)
            if summary := statistics.summary(values[cell.row, cell.column]):
                means[place], errors[place] = summary.mean, summary.error
            if cell.paper:
                published[place] = cell.paper.mean
        ours = dict(zip(rows, zip(means, errors, strict=True), strict=True))
        paper = dict(zip(rows, published, strict=True))
        drawing, ax = style.figure(width='page' if len(columns) > 2 else 'column', height=2.8)
        kind = KINDS[cells[0].measure.kind]
        title = kind.group or kind.title
        curves.table(ax, columns, ours, paper, f'{title[0].upper()}{title[1:]} ({kind.unit})')
        ending = quantity.replace(' ', '-') if len(by_quantity) > 1 else ''
        yield ending, ', hollow: the paper' if any(cell.paper for cell in cells) else '', drawing


def _curves(name: str, table: Table, results: Mapping[CellKey, CellResult]) -> Drawn:
    """A figure for each column, or for all that read values from the same runs; rows have the same looks in all."""
    drawn = set()
    for column in table.columns:
        of_task = next(cell.measure.kind for cell in table.cells if cell.column == column)
        if name == 'score_rounds' and tasks.split_key(of_task) is None:
            continue
        groups = {row: results[table.title, row, column].runs for row in table.rows if table.at(row, column)}
        groups = {row: runs for row, runs in groups.items() if runs}
        key = of_task if name == 'score_rounds' else ''
        source = (key, *(str(run.folder) for runs in groups.values() for run in runs.values()))
        if not groups or source in drawn:
            continue
        drawn.add(source)
        title = re.split(' to |, T = ', column)[0] if table.cells[0].measure.target else column
        try:
            drawing, points = _of_column(name, groups, style.looks([style.group_title(row) for row in table.rows]), key)
        except UserError:  # no run recorded this quantity
            continue
        means = ' (each point the mean of several evaluations)' if points else ''
        yield slug(title), f', {title}{means}', drawing


def _of_column(
    name: str, groups: plots_collect.Groups, row_looks: Mapping[str, Look], of_task: str
) -> tuple[Any, bool]:
    """The drawing `name`, of FIGURES, of a column, and whether its points are means of several evaluations; `of_task`:
    key of a task's score, '' for that of the headline."""
    if name == 'accuracy_prices':
        return _prices(groups, row_looks)
    drawing, ax = style.figure()
    if name == 'spread_rounds':
        spreads = [plots_collect.spread(group, runs) for group, runs in groups.items() if len(runs) > 1]
        if not spreads:
            raise UserError('a spread needs a row of at least two seeds')
        score = plots_collect.score(groups)
        label = f'Deviation of the {score.axis}'
        curves.against(ax, _with_looks(spreads, row_looks), label, scale=score.scale, from_zero=True)
        return drawing, False
    x = {'accuracy_gigabytes': 'gigabytes', 'accuracy_minutes': 'minutes'}.get(name, 'round')
    key = of_task or {'k_s': 'k_s', 'loss_rounds': GLOBAL_LOSS}.get(name, plots_collect.SCORE)
    found = _with_looks(plots_collect.curves(groups, key, x), row_looks)
    if name == 'k_s':
        curves.k_s(ax, found)
        return drawing, False
    if name == 'loss_rounds':
        curves.against(ax, found, 'Training loss')
        return drawing, False
    task = tasks.split_key(of_task)
    score = task.score if task else plots_collect.score(groups)
    shown = [curves.binned(curve, POINTS) for curve in found]
    curves.score(ax, shown, x, score)
    _begin_late([ax], shown, score)
    return drawing, any(len(curve.x) > POINTS for curve in found)


def _with_looks(found: Sequence[Curve], row_looks: Mapping[str, Look]) -> list[Curve]:
    return [curve._replace(look=row_looks[curve.label]) for curve in found]


def _prices(groups: plots_collect.Groups, row_looks: Mapping[str, Look]) -> tuple[Any, bool]:
    """A panel for each of rounds, traffic and time, on one axis of accuracies; returns as `_of_column`."""
    drawing, axes = style.figure(1, 3, width='page', height=2.5)
    score = plots_collect.score(groups)
    shown = []
    first = plots_collect.curves(groups, plots_collect.SCORE, 'round')
    for ax, x in zip(axes, curves.X_LABELS, strict=True):
        found = _with_looks(plots_collect.curves(groups, plots_collect.SCORE, x), row_looks)
        end = max((curve.x[-1] for curve in found), default=0.0)
        moving = [curves.binned(curve, PANEL_POINTS) for curve in found if curve.x[-1] > 0.01 * end]
        curves.lines(ax, moving, scale=score.scale)
        for curve in first:
            if curve.label not in {other.label for other in moving}:  # the server alone, which sends nothing
                level = score.scale * curves.binned(curve, PANEL_POINTS).mean[-1]
                look = row_looks[curve.label]
                ax.axhline(level, color=look.color, linestyle=look.dash)
        ax.set_xlabel(curves.X_LABELS[x])
        shown += moving
    _begin_late(axes, shown, score)
    axes[0].set_ylabel(f'Test {score.axis}')
    style.legend(drawing)
    return drawing, any(len(curve.x) > PANEL_POINTS for curve in first)


def _begin_late(axes: Sequence[Any], shown: Sequence[Curve], score: Score) -> None:
    """Leaves out of the axes of scores what only the first tenth of the rounds has: it tells methods apart by nothing
    but their first steps."""
    ends = [curve.mean + sign * np.nan_to_num(curve.error) for curve in shown for sign in (-1, 1)]  # of the bands
    values = np.concatenate([*(score.scale * end[len(end) // 10 :] for end in ends), []])
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = values.min(), values.max()
    margin = 0.05 * (high - low) or 1.0
    for ax in axes:
        ax.set_ylim(low - margin, high + margin)
