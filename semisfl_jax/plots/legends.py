"""The legend of a figure: one for all its panels, below them, at most as wide as the figure."""

from __future__ import annotations

import textwrap
from typing import Any

MOST_COLUMNS = 6
MARGIN = 0.06  # inches left free at either side
_NAME = 'legend of all panels'


def below(figure: Any) -> None:
    """Collects the entries of all panels, each name once, in a legend below the figure.

    The figure grows by the height of the legend, so that the panels keep theirs. Calling it again after drawing
    another panel rebuilds the legend. Names too long for the figure are wrapped.
    """
    for old in [legend for legend in figure.legends if legend.get_gid() == _NAME]:
        figure.set_figheight(figure.get_figheight() - _inches(old)[1])
        old.remove()
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    if not entries:
        return
    if figure.get_layout_engine() is None:
        figure.set_layout_engine('constrained')  # without one, nothing makes room for a legend outside the panels
    legend = _fitting(figure, list(entries.values()), list(entries))
    figure.set_figheight(figure.get_figheight() + _inches(legend)[1])


def _fitting(figure: Any, handles: list[Any], names: list[str]) -> Any:
    """The legend with as few rows as fit into the figure's width."""
    columns = min(len(names), MOST_COLUMNS)
    while columns:
        rows = -(-len(names) // columns)
        legend = _make(figure, handles, names, -(-len(names) // rows))
        if _fits(legend):
            return legend
        columns = min(columns - 1, int(_share(legend) * columns) + 1)
        legend.remove()
    letters = max(map(len, names))
    while True:
        legend = _make(figure, handles, [textwrap.fill(name, letters) for name in names], 1)
        if _fits(legend) or letters == 1:
            return legend
        letters = max(1, min(letters - 1, int(_share(legend) * letters)))
        legend.remove()


def _make(figure: Any, handles: list[Any], names: list[str], columns: int) -> Any:
    legend = figure.legend(handles, names, loc='outside lower center', ncols=columns, columnspacing=1.4)
    legend.set_gid(_NAME)
    return legend


def _fits(legend: Any) -> bool:
    return _share(legend) >= 1.0


def _share(legend: Any) -> float:
    """The available width as a share of the legend's width."""
    return (legend.figure.get_figwidth() - 2 * MARGIN) / _inches(legend)[0]


def _inches(legend: Any) -> tuple[float, float]:
    """Width and height in inches."""
    box, dpi = legend.get_window_extent(), legend.figure.dpi
    return box.width / dpi, box.height / dpi
