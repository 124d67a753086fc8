"""The style of all plots: sizes for a column or a page of a paper, and the palette of Okabe and Ito.

`looks` defines the lines of methods and other groups, `legends` their legends.
"""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from semisfl_jax import algorithms
from semisfl_jax.core.errors import UserError

# Okabe and Ito, Color Universal Design (2008), without yellow, which is hard to see on white paper.
BLUE, ORANGE, GREEN, PURPLE = '#0072B2', '#E69F00', '#009E73', '#CC79A7'
VERMILION, SKY, BLACK, GRAY = '#D55E00', '#56B4E9', '#000000', '#999999'
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
SEQUENTIAL = 'Blues'  # white to dark, readable with any color vision and in grayscale
NOTHING = '#DDDDDD'  # background of heat maps where there is no value

WIDTHS = {'column': 3.5, 'page': 7.16}  # inches, of a two-column paper
FORMATS = ('png', 'svg', 'pdf')
_UNDATED = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}}

RC = {
    'font.size': 8,
    'axes.labelsize': 8,
    'axes.titlesize': 8,
    'xtick.labelsize': 7,
    'ytick.labelsize': 7,
    'legend.fontsize': 7,
    'legend.frameon': False,
    'legend.handlelength': 3.0,  # long enough to distinguish dashes
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.linewidth': 0.7,
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.color': '#DDDDDD',
    'grid.linewidth': 0.5,
    'lines.linewidth': 1.3,
    'lines.markersize': 4,
    'hatch.linewidth': 0.6,
    'savefig.dpi': 300,
    'pdf.fonttype': 42,
    'svg.hashsalt': 'semisfl_jax',  # equal figures give equal files
}


def matplotlib() -> ModuleType:
    """The library, imported on first use.

    Raises:
      UserError: it is not installed.
    """
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise UserError("plots need matplotlib: pip install -e '.[plots]'") from error
    return matplotlib


@contextmanager
def context() -> Iterator[None]:
    """Applies the style to everything drawn and saved in the block."""
    with matplotlib().rc_context(RC):
        yield


def figure(rows: int = 1, columns: int = 1, width: str = 'column', height: float = 2.3) -> tuple[Any, Any]:
    """A Figure and its Axes, an array as from `Figure.subplots`, or a single one.

    Args:
      rows, columns: numbers of panels.
      width: 'column' or 'page'.
      height: of a row, in inches.
    """
    drawing = matplotlib().figure.Figure(figsize=(WIDTHS[width], height * rows), layout='constrained')
    return drawing, drawing.subplots(rows, columns)


def content(figure: Any, kind: str, dpi: int | None = None) -> bytes:
    """The file of a Figure, one of FORMATS, without a date; `dpi` None: as the context has it."""
    written = io.BytesIO()
    figure.savefig(written, format=kind, dpi=dpi, metadata=_UNDATED.get(kind, {}))
    return written.getvalue()


class Picture:
    """A Figure for display in notebooks, without pyplot or a backend: `display(Picture(figure))`."""

    def __init__(self, figure: Any):
        self.figure = figure

    def _repr_png_(self) -> bytes:
        return content(self.figure, 'png', dpi=150)


# The look of every method and group of runs: title, color, marker and dash, the same in all figures.
#
# A method has one look everywhere, given in its record: seven of Okabe and Ito's colors and others far from these,
# distinguishable also with red-green color blindness; in grayscale, markers distinguish them. Methods of dense tasks,
# which are in no figure with those of classification, are told apart from one another alone. All other groups,
# including methods without a look, take theirs from a cycle of other colors, in the order in which a figure names them.
# Variants of one method ('SemiSFL, k_s=20' and 'SemiSFL, k_s=40') share a color, and differ in marker and dash.

Dash = str | tuple[int, tuple[float, ...]]

DASHES: tuple[Dash, ...] = ('-', '--', '-.', ':', (0, (6.0, 1.2, 1.0, 1.2, 1.0, 1.2)))


class Look(NamedTuple):
    """The title of a group in the legend, and how it is drawn."""

    title: str
    color: str
    marker: str
    dash: Dash

    def line(self, points: int, place: int = 0) -> dict[str, Any]:
        """Arguments of `Axes.plot`: about eight of `points` have markers, staggered by `place` among lines."""
        step = max(1, points // 8)
        return {**self.point(), 'linestyle': self.dash, 'markevery': (place * step // 3 % step, step)}

    def point(self) -> dict[str, Any]:
        """The arguments that single points share with lines."""
        return {'color': self.color, 'marker': self.marker}


# Of all other groups: colors that no method has, chosen for contrast with each other under any color vision.
CYCLE = ('#661100', '#66AA00', '#5E8DEB', '#E8837E', '#7A1FA2', '#5F6B6D')
MARKERS = ('d', '*', 's', '^', 'o', 'D', 'v', 'X', 'P', '<', '>', 'p', 'h')


# What stands behind the name of a method, by a part of the label of its group.
MARKS = {'pseudo_labels=true': ' (oracle)', 'pseudo_labels=none': ' (no pseudo-labels)', 'pseudo_labels=method': ''}


def method_looks() -> dict[str, Look]:
    """The looks of all methods that have one, by name."""
    return {name: Look(method.label, *method.look) for name, method in algorithms.METHODS.items() if method.look}


def group_title(group: str) -> str:
    """The title of a group of `runs.group`: 'algorithm=semisfl, k_s=20' -> 'SemiSFL, k_s=20', and with
    'pseudo_labels=true' in it 'SemiSFL (oracle), k_s=20'."""
    method, *rest = group.removeprefix('algorithm=').split(', ')
    name = algorithms.METHODS[method].label if method in algorithms.METHODS else method
    if method in algorithms.METHODS:
        name += ''.join(mark for part, mark in MARKS.items() if part in rest)
        rest = [part for part in rest if part not in MARKS]
    return ', '.join([name, *rest])


def looks(titles: Sequence[str]) -> dict[str, Look]:
    """The look of every group of a figure.

    Args:
      titles: of all its groups, so that each keeps its look in a panel that has only some of them.
    """
    methods = {look.title: look for look in method_looks().values()}
    colors, shapes, looks = itertools.cycle(CYCLE), _free_shapes(), {}
    families: dict[str, str] = {}  # text before the first comma, and without a mark -> color
    for name in dict.fromkeys(titles):
        whole = name.split(', ')[0]
        family = next((whole.removesuffix(mark) for mark in MARKS.values() if mark and whole.endswith(mark)), whole)
        if family in methods and family not in families and family == whole:
            looks[name] = methods[family]._replace(title=name)
        else:
            of_method = methods[family].color if family in methods else ''
            color = families.get(family) or of_method or next(colors)
            looks[name] = Look(name, color, *next(shapes))
        if family == whole or family in families:  # a method that follows its oracle keeps its own look
            families[family] = looks[name].color
    return looks


def _free_shapes() -> Iterator[tuple[str, Dash]]:
    """Pairs of marker and dash that no method has, cycled forever."""
    pairs = zip(itertools.cycle(MARKERS), itertools.cycle(DASHES), strict=False)
    taken = {(look.marker, look.dash) for look in method_looks().values()}
    free = [pair for pair in itertools.islice(pairs, len(MARKERS) * len(DASHES)) if pair not in taken]
    return itertools.cycle(free)


# The legend of a figure: one for all its panels, below them, at most as wide as the figure.

MOST_COLUMNS = 6
MARGIN = 0.06  # inches left free at either side
_NAME = 'legend of all panels'


def legend(figure: Any) -> None:
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
