"""How figures look: sizes for a column or a page of a paper, colors, the legend, and the looks of groups of runs.

A method has one look in all figures, given in its record: seven of Okabe and Ito's colors and others far from these,
distinguishable also with red-green color blindness; in grayscale, markers distinguish them. Looks of methods of dense
tasks, which are in no figure with those of classification, differ only from one another. All other groups, including
methods without a look, take theirs from a cycle of other colors, in the order in which a figure names them. Variants of
one method ('SemiSFL, k_s=20' and 'SemiSFL, k_s=40') share a color, and differ in marker and dash.
"""

import io
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from semisfl_jax import algorithms
from semisfl_jax.base.errors import UserError, install

# Okabe and Ito, Color Universal Design (2008), without yellow, which is hard to see on white paper.
BLUE, ORANGE, GREEN, PURPLE = '#0072B2', '#E69F00', '#009E73', '#CC79A7'
VERMILION, SKY, BLACK, GRAY = '#D55E00', '#56B4E9', '#000000', '#999999'
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
SEQUENTIAL = 'Blues'  # white to dark, readable with any color vision and in grayscale
NOTHING = '#DDDDDD'  # background of heat maps where there is no value

WIDTHS = {'column': 3.5, 'page': 7.16}  # inches, of a two-column paper
FORMATS = ('png', 'svg', 'pdf')
_UNDATED = {'svg': {'Date': None}, 'pdf': {'CreationDate': None}}

INTERVALS = {  # what a band around a mean over seeds is: its name in legends
    'se': '± standard error',
    'ci95': '95 % interval of the mean',
    'range': 'lowest to highest seed',
}
interval = ContextVar('interval', default='se')  # one of them, as `context` was told

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

Axes: TypeAlias = Any  # matplotlib's, which is imported when it draws
Dash: TypeAlias = str | tuple[int, tuple[float, ...]]

# Of groups that are no methods: colors that no method has, chosen for contrast with each other under any color vision.
CYCLE = ('#661100', '#66AA00', '#5E8DEB', '#E8837E', '#7A1FA2', '#5F6B6D')
MARKERS = ('d', '*', 's', '^', 'o', 'D', 'v', 'X', 'P', '<', '>', 'p', 'h')
DASHES: tuple[Dash, ...] = ('-', '--', '-.', ':', (0, (6.0, 1.2, 1.0, 1.2, 1.0, 1.2)))

# What stands behind the name of a method, by a part of the label of its group.
MARKS = {'pseudo_labels=true': ' (oracle)', 'pseudo_labels=none': ' (no pseudo-labels)', 'pseudo_labels=method': ''}

MOST_COLUMNS = 6  # of a legend
LETTERS = 14  # of a legend's longest name, per inch of the figure


class Look(NamedTuple):
    """The title of a group in the legend, and how it is drawn."""

    title: str
    color: str
    marker: str
    dash: Dash

    def line(self, points: int, place: int = 0) -> dict[str, Any]:
        """Returns arguments of `Axes.plot`.

        Args:
          points: of the line; about eight of them have markers.
          place: of the line among others, which staggers their markers.
        """
        step = max(1, points // 8)
        return {**self.point(), 'linestyle': self.dash, 'markevery': (place * step // 3 % step, step)}

    def point(self) -> dict[str, Any]:
        """Returns the arguments that single points share with lines."""
        return {'color': self.color, 'marker': self.marker}


def matplotlib() -> ModuleType:
    """Imports the library on first use.

    Raises:
      UserError: it is not installed.
    """
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise UserError(f'plots need matplotlib: {install("plots")}') from error
    return matplotlib


@contextmanager
def context(bands: str = 'se') -> Iterator[None]:
    """Applies the style to everything drawn and saved in the block; `bands`: one of INTERVALS."""
    token = interval.set(bands)
    try:
        with matplotlib().rc_context(RC):
            yield
    finally:
        interval.reset(token)


def figure(rows: int = 1, columns: int = 1, width: str = 'column', height: float = 2.3) -> tuple[Any, Any]:
    """Makes a Figure and its Axes, an array as from `Figure.subplots`, or a single one.

    Args:
      rows: of Axes.
      columns: of Axes.
      width: one of WIDTHS.
      height: of a row, in inches.
    """
    drawing = matplotlib().figure.Figure(figsize=(WIDTHS[width], height * rows), layout='constrained')
    return drawing, drawing.subplots(rows, columns)


def content(figure: Any, kind: str, dpi: int | None = None) -> bytes:
    """Returns the bytes of the file of a Figure, without a date.

    Args:
      figure: the Figure.
      kind: one of FORMATS.
      dpi: None for that of the context.
    """
    written = io.BytesIO()
    figure.savefig(written, format=kind, dpi=dpi, metadata=_UNDATED.get(kind, {}))
    return written.getvalue()


class Picture:
    """A Figure for display in notebooks, without pyplot or a backend: `display(Picture(figure))`."""

    def __init__(self, figure: Any):
        self.figure = figure

    def _repr_png_(self) -> bytes:
        return content(self.figure, 'png', dpi=150)


def legend(figure: Any) -> None:
    """Puts one legend for all panels below a figure, with each name once; long names are wrapped.

    The figure grows by its height, so that panels keep theirs; one in a column whose legend would be taller than half
    of it takes the page. Called again after another panel, it makes a new one.
    """

    def inches(side: str) -> float:
        return getattr(figure.legends[-1].get_window_extent(), side) / figure.dpi

    while figure.legends:
        figure.set_figheight(figure.get_figheight() - inches('height'))
        figure.legends[-1].remove()
    entries: dict[str, Any] = {}
    for ax in figure.axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(textwrap.fill(name, int(LETTERS * figure.get_figwidth())), handle)
    if not entries:
        return
    if figure.get_layout_engine() is None:
        figure.set_layout_engine('constrained')  # makes room outside the panels
    for most in range(min(len(entries), MOST_COLUMNS), 0, -1):
        columns = -(-len(entries) // -(-len(entries) // most))  # no more than its rows need
        where = {'loc': 'outside lower center', 'ncols': columns, 'columnspacing': 1.4}
        assigned = figure.legend(list(entries.values()), list(entries), **where)
        if most == 1 or inches('width') < 0.97 * figure.get_figwidth():
            break
        assigned.remove()
    if inches('height') > figure.get_figheight() / 2 and figure.get_figwidth() < WIDTHS['page']:
        figure.legends[-1].remove()
        figure.set_figwidth(WIDTHS['page'])
        legend(figure)
        return
    figure.set_figheight(figure.get_figheight() + inches('height'))


def group_title(group: str) -> str:
    """Returns the title of a group of `runs.group`: 'algorithm=semisfl, k_s=20' -> 'SemiSFL, k_s=20'.

    With 'pseudo_labels=true' in it, 'SemiSFL (oracle), k_s=20'.
    """
    group = group.replace('$', r'\$')  # of a path, where no formula begins
    method, *rest = group.removeprefix('algorithm=').split(', ')
    if method not in algorithms.METHODS:
        return ', '.join([method, *rest])
    marks = ''.join(mark for part, mark in MARKS.items() if part in rest)
    return ', '.join([algorithms.METHODS[method].label + marks, *(part for part in rest if part not in MARKS)])


def looks(titles: Sequence[str]) -> dict[str, Look]:
    """Returns the look of every group of a figure.

    Args:
      titles: of all of them, also for a panel with only some.
    """
    methods = {each.label: Look(each.label, *each.look) for each in algorithms.METHODS.values() if each.look}
    taken = {(look.marker, look.dash) for look in methods.values()}
    pairs = zip(itertools.cycle(MARKERS), itertools.cycle(DASHES), strict=False)
    shapes = (pair for pair in pairs if pair not in taken)
    colors, assigned = itertools.cycle(CYCLE), {}
    families: dict[str, str] = {}  # text before the first comma, and without a mark -> color
    for name in dict.fromkeys(titles):
        whole = name.split(', ')[0]
        family = next((whole.removesuffix(mark) for mark in MARKS.values() if mark and whole.endswith(mark)), whole)
        if family in methods and family not in families and family == whole:
            assigned[name] = methods[family]._replace(title=name)
        else:
            color = methods[family].color if family in methods else ''
            assigned[name] = Look(name, families.get(family) or color or next(colors), *next(shapes))
        if family == whole or family in families:  # a method that follows its oracle has its look all the same
            families[family] = assigned[name].color
    return assigned
