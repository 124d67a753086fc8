"""The plot of all cuts: four panels over the cut, readable without colors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from semisfl_jax.core import file_io
from semisfl_jax.core.types import Axes
from semisfl_jax.cuts.prices import Price, Pricing
from semisfl_jax.plots import style

_STYLES = ((style.BLUE, 'o', '-'), (style.VERMILION, 's', '--'))
_GUIDE = {'color': style.GRAY, 'linewidth': 1}
_MIB = 2**20

Line = tuple[str, Callable[[Price], float]]

_PANELS: tuple[tuple[str, str, tuple[Line, ...]], ...] = (
    (
        'Sent in a round, one client',
        'MiB',
        (('down', lambda price: price.down / _MIB), ('up', lambda price: price.up / _MIB)),
    ),
    ('Computation at the client', 'GFLOP per iteration', (('client', lambda price: price.client_flop / 1e9),)),
    ('Memory at the client', 'MiB', (('client', lambda price: price.memory / _MIB),)),
    ('Simulated time', 'seconds per round', (('round', lambda price: price.seconds),)),
)


def figure(pricing: Pricing) -> Any:
    """A matplotlib figure of `pricing`."""
    drawn, axes = style.figure(2, 2, 'page', height=2.6)
    drawn.suptitle(pricing.title)
    for axis, (title, unit, lines) in zip(axes.flat, _PANELS, strict=True):
        _panel(axis, pricing, lines)
        axis.set_title(title)
        axis.set_xlabel('layers at the client')
        axis.set_ylabel(unit)
    return drawn


def _panel(axis: Axes, pricing: Pricing, lines: Sequence[Line]) -> None:
    cuts = [price.cut for price in pricing.cuts]
    uncut_heights = {round(height(pricing.whole), 9) for _, height in lines}
    for (label, height), (color, marker, dashes) in zip(lines, _STYLES, strict=False):
        axis.plot(cuts, [height(p) for p in pricing.cuts], color=color, marker=marker, linestyle=dashes, label=label)
    for uncut_height in uncut_heights:
        axis.axhline(uncut_height, linestyle='-.', label='whole model', **_GUIDE)
    axis.axvline(pricing.chosen, linestyle=':', label='chosen cut', **_GUIDE)
    axis.set_xticks(cuts)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=True, framealpha=1, edgecolor='none')  # the line of the chosen cut may pass behind it


def plot(pricing: Pricing, folder: Path) -> None:
    """Writes cuts.png and cuts.svg.

    Raises:
      UserError: matplotlib is not installed.
    """
    with style.context():
        drawn = figure(pricing)
        for suffix in ('png', 'svg'):
            file_io.write(folder / f'cuts.{suffix}', style.content(drawn, suffix))
