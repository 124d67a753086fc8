"""How all plots look: the palette of Okabe and Ito, told apart in grey by dashes and markers, one column of a paper."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from semisfl_jax.errors import UserError

# Okabe and Ito, Color Universal Design (2008); yellow, which white paper swallows, is left out.
BLUE, ORANGE, GREEN, PURPLE = '#0072B2', '#E69F00', '#009E73', '#CC79A7'
VERMILION, SKY, BLACK, GREY = '#D55E00', '#56B4E9', '#000000', '#999999'
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES = ('-', '--', '-.', ':')
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '<', '>', '*')
SEQUENTIAL = 'Blues'  # white to dark, read alike with and without colour vision, and in grey
NOTHING = '#DDDDDD'  # where shades have no value

WIDTHS = {'column': 3.5, 'page': 7.16}  # inches, of a two-column paper
MOST_INSIDE = 3  # entries of a legend inside the Axes
FORMATS = ('png', 'svg', 'pdf')

RC = {
    'font.size': 8,
    'axes.labelsize': 8,
    'axes.titlesize': 8,
    'xtick.labelsize': 7,
    'ytick.labelsize': 7,
    'legend.fontsize': 7,
    'legend.frameon': False,
    'legend.handlelength': 2.6,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.linewidth': 0.7,
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.color': '#DDDDDD',
    'grid.linewidth': 0.5,
    'lines.linewidth': 1.3,
    'lines.markersize': 3.5,
    'hatch.linewidth': 0.6,
    'savefig.dpi': 300,
    'pdf.fonttype': 42,
    'svg.hashsalt': 'semisfl_jax',  # equal figures, equal files
}


def matplotlib():
    """The library, imported when first wanted.

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
    """The style, for what is drawn and saved in the block."""
    with matplotlib().rc_context(RC):
        yield


def figure(rows: int = 1, columns: int = 1, width: str = 'column', height: float = 2.3) -> tuple[Any, Any]:
    """A Figure and its Axes [rows, columns]; one alone comes without an array.

    Args:
      rows, columns: of panels.
      width: 'column' or 'page'.
      height: of a row, in inches.
    """
    made = matplotlib().figure.Figure(figsize=(WIDTHS[width], height * rows), layout='constrained')
    return made, made.subplots(rows, columns)


def line(place: int, points: int) -> dict[str, Any]:
    """What sets line number `place` of a plot apart; about eight of its `points` are marked, each line at others."""
    step = max(1, points // 8)
    return {
        'color': PALETTE[place % len(PALETTE)],
        'linestyle': DASHES[place % len(DASHES)],
        'marker': MARKERS[place % len(MARKERS)],
        'markevery': (place * step // 3 % step, step),
    }


def legend(ax, shared: bool = False) -> None:
    """A legend inside the Axes; where it has many entries, above them, or below the figure if its panels share it."""
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) > MOST_INSIDE and shared:
        ax.figure.legend(handles, labels, loc='outside lower center', ncols=min(len(labels), 6))
    elif len(labels) > MOST_INSIDE:
        ax.legend(loc='lower center', bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2)
    elif labels:
        ax.legend()


class Picture:
    """A Figure as notebooks show it: `display(Picture(figure))`, which needs no pyplot and no backend."""

    def __init__(self, made: Any):
        self.figure = made

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.figure.savefig(written, format='png', dpi=150)
        return written.getvalue()
