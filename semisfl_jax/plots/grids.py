"""Tables as figures: values of several rows in several columns, ours beside the paper's."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np

from semisfl_jax.core.types import Axes
from semisfl_jax.plots import legends, looks, style

LETTERS = 11  # per inch of text below an axis


def points(
    ax: Axes,
    columns: Sequence[str],
    ours: Mapping[str, tuple[np.ndarray, np.ndarray]],
    paper: Mapping[str, np.ndarray],
    unit: str,
    column_name: str = '',
) -> Axes:
    """Means with bars of one standard error, grouped by column; the paper's values are hollow markers beside them.

    Args:
      ax: Axes.
      columns: C names.
      ours: row -> means [C] and standard errors [C], NaN where missing.
      paper: row -> values [C], NaN where missing.
      unit: label of the y axis.
      column_name: label of the x axis.
    """
    rows = list(dict.fromkeys([*ours, *paper]))
    place = np.arange(len(columns))
    step = 0.8 / max(1, len(rows))
    missing = np.full(len(columns), np.nan)
    row_looks = looks.of(rows)
    for number, row in enumerate(rows):
        look = row_looks[row].point()
        at = place + (number - (len(rows) - 1) / 2.0) * step
        mean, error = ours.get(row, (missing, missing))
        bars = np.where(np.isfinite(error), error, 0.0)
        ax.errorbar(at, mean, yerr=bars, linestyle='none', capsize=1.5, elinewidth=0.8, label=row, **look)
        paper_values = paper.get(row, missing)
        ax.plot(at + 0.3 * step, paper_values, linestyle='none', markerfacecolor='none', **look)
    if any(np.isfinite(values).any() for values in paper.values()):
        hollow = {'color': style.GRAY, 'markerfacecolor': 'none', 'label': 'paper (hollow)'}
        ax.errorbar([], [], fmt='o', **hollow)  # errorbar, like the rows, so that it follows them in the legend
    width = max(6, int(LETTERS * ax.figure.get_figwidth() / len(columns)))
    ax.set_xticks(place, [textwrap.fill(name, width) for name in columns])
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_xlabel(column_name)
    ax.set_ylabel(textwrap.fill(unit, 40))
    ax.grid(visible=False, axis='x')
    legends.below(ax.figure)
    return ax
