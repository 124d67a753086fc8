"""The figures of a study, as file contents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax import tasks
from semisfl_jax.core.errors import UserError
from semisfl_jax.plots import collect as plots_collect
from semisfl_jax.plots import curves, style
from semisfl_jax.plots.curves import Curve
from semisfl_jax.plots.style import Look
from semisfl_jax.studies import collect, statistics
from semisfl_jax.studies.collect import CellKey, CellResult
from semisfl_jax.studies.spec import Cell, Study, Table
from semisfl_jax.tasks import Score

POINTS = 150  # of a curve of scores, at most
PANEL_POINTS = 60  # in a small panel
SCORE = plots_collect.SCORE
MEANS = ' (each point the mean of several evaluations)'
NAMES = {
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
DPI = 200  # of the pictures of reports


class Figure(NamedTuple):
    """A finished figure."""

    name: str  # of its files, without extension
    table: str  # title of the table it belongs to
    caption: str
    png: bytes
    svg: bytes


def draw(study: Study, results: Mapping[CellKey, CellResult]) -> Iterator[Figure]:
    """All figures of a study that its finished runs have the data for, in the order of its tables."""
    with style.context():
        for number, table in enumerate(study.tables, 1):
            for name in table.figures:
                for ending, title, make in _of_table(name, table, results):
                    try:
                        figure, note = make()
                    except UserError:  # no run recorded this quantity
                        continue
                    stem = '-'.join(filter(None, (str(number), name, ending)))
                    caption = f'{NAMES[name]}{f", {title}" if title else ""}{note}'
                    warned = f'{caption}. {study.warning.split(":")[0].rstrip(".")}.' if study.warning else caption
                    yield Figure(stem, table.title, warned, *pictures(figure))


def _of_table(
    name: str, table: Table, results: Mapping[CellKey, CellResult]
) -> Iterator[tuple[str, str, Callable[[], tuple[Any, str]]]]:
    """A figure for each kind of values or column of curves: suffix of the file name, title, and the function that draws
    it and says how the caption ends."""
    if name == 'values':
        quantities = dict.fromkeys(_quantity(cell) for cell in table.cells)
        for quantity in quantities:
            cells = _run(table, results, quantity)
            title = 'hollow: the paper' if any(cell.paper for cell in cells) else ''
            yield (
                ('' if len(quantities) == 1 else quantity.replace(' ', '-')),
                title,
                partial(_values, table, results, cells),
            )
        return
    drawn = set()
    for column in table.columns:
        of_task = next(cell.measure.kind for cell in table.cells if cell.column == column)
        if name == 'score_rounds' and tasks.split_key(of_task) is None:
            continue
        groups = {row: results[table.title, row, column].runs for row in table.rows if table.at(row, column)}
        groups = {row: runs for row, runs in groups.items() if runs}
        title = re.split(' to |, T = ', column)[0] if table.cells[0].measure.target else column
        key = of_task if name == 'score_rounds' else ''
        source = (key, *(str(run.folder) for runs in groups.values() for run in runs.values()))
        if groups and source not in drawn:  # columns that read several values from the same runs share a figure
            drawn.add(source)
            yield slug(title), title, partial(_curves, name, groups, style.looks(table.rows), key)


def _quantity(cell: Cell) -> str:
    """What stands in one figure of values: a kind of measure, or a group of them."""
    kind = cell.measure.kind
    return collect.KINDS[kind].group or kind


def _run(table: Table, results: Mapping[CellKey, CellResult], quantity: str) -> list[Cell]:
    """Cells of a quantity, in columns where any has a value; columns with only the paper's are omitted."""
    cells = [cell for cell in table.cells if _quantity(cell) == quantity]
    columns = {
        cell.column for cell in cells if collect.values(results[table.title, cell.row, cell.column], cell.measure)
    }
    return [cell for cell in cells if cell.column in columns]


def _values(table: Table, results: Mapping[CellKey, CellResult], chosen: list[Cell]) -> tuple[Any, str]:
    if not chosen:
        raise UserError('nothing to draw')
    cells = {(cell.row, cell.column): cell for cell in chosen}
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    ours, paper = {}, {}
    for row in rows:
        mean, error, published = (np.full(len(columns), np.nan) for _ in range(3))
        for index, column in enumerate(columns):
            cell = cells.get((row, column))
            if cell is None:
                continue
            if summary := statistics.summary(collect.values(results[table.title, row, column], cell.measure)):
                mean[index], error[index] = summary.mean, summary.error
            if cell.paper:
                published[index] = cell.paper.mean
        ours[row], paper[row] = (mean, error), published
    figure, ax = style.figure(width='page' if len(columns) > 2 else 'column', height=2.8)
    kind = collect.KINDS[chosen[0].measure.kind]
    title = kind.group or kind.title
    curves.table(ax, columns, ours, paper, f'{title[0].upper()}{title[1:]} ({kind.unit})')
    return figure, ''


def _curves(
    name: str, groups: plots_collect.Groups, row_looks: Mapping[str, Look], of_task: str = ''
) -> tuple[Any, str]:
    """Curves of a column; rows have the same looks in all columns, even if a column lacks some of them.

    Args:
      name: of NAMES.
      groups: runs of each row.
      row_looks: of each row of the table.
      of_task: key of a task's score, '' for that of the headline.

    Returns:
      The figure, and MEANS if its points are some, or ''.
    """
    if name == 'accuracy_prices':
        return _prices(groups, row_looks)
    figure, ax = style.figure()
    if name == 'spread_rounds':
        spreads = [plots_collect.spread(group, runs) for group, runs in groups.items()]
        curves.spread(
            ax, [curve._replace(look=row_looks[curve.label]) for curve in spreads], plots_collect.score(groups)
        )
        return figure, ''
    x = {'accuracy_gigabytes': 'gigabytes', 'accuracy_minutes': 'minutes'}.get(name, 'round')
    key = of_task or {'k_s': 'k_s', 'loss_rounds': 'loss_global'}.get(name, SCORE)
    group_curves = plots_collect.curves(groups, key, x)
    group_curves = [curve._replace(look=row_looks[curve.label]) for curve in group_curves]
    note = ''
    if name == 'k_s':
        curves.k_s(ax, group_curves)
    elif name == 'loss_rounds':
        curves.loss(ax, group_curves)
    else:
        task = tasks.split_key(of_task)
        score = task.score if task else plots_collect.score(groups)
        note = _note(group_curves, POINTS)
        group_curves = [curves.binned(curve, POINTS) for curve in group_curves]
        curves.score(ax, group_curves, x, score)
        _begin_late([ax], group_curves, score)
    return figure, note


def _prices(groups: plots_collect.Groups, row_looks: Mapping[str, Look]) -> tuple[Any, str]:
    """A panel for each of rounds, traffic and time, on one axis of accuracies; returns what `_curves` does."""
    figure, axes = style.figure(1, 3, width='page', height=2.5)
    score = plots_collect.score(groups)
    shown = []
    first = plots_collect.curves(groups, SCORE, 'round')
    for ax, x in zip(axes, curves.X_LABELS, strict=True):
        found = [curve._replace(look=row_looks[curve.label]) for curve in plots_collect.curves(groups, SCORE, x)]
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
    axes[0].set_ylabel(f'Test {score.label} (%)')
    style.legend(figure)
    return figure, _note(first, PANEL_POINTS)


def _note(found: Sequence[Curve], points: int) -> str:
    return MEANS if max(len(curve.x) for curve in found) > points else ''


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


def pictures(figure: Any) -> tuple[bytes, bytes]:
    """The PNG and the SVG of a figure of a report."""
    return style.content(figure, 'png', DPI), style.content(figure, 'svg', DPI)


def slug(text: str) -> str:
    """A title as a part of a file name."""
    return '-'.join(''.join(x if x.isalnum() or x == '.' else ' ' for x in text).split())
