"""The style of all plots: sizes for a column or a page of a paper, and the palette of Okabe and Ito.

`looks` defines the lines of methods and other groups, `legends` their legends.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

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
