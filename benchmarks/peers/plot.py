"""The plot of a comparison: for each workload, seconds per round and to the first round."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks import commands
from benchmarks.peers.catalog import ALL, OURS
from benchmarks.peers.tables import first, rounds, timed

LOOKS = {True: {'color': '#0072B2'}, False: {'color': '#E69F00', 'hatch': '//'}}  # ours, others


def plot(result: dict, folder: Path) -> None:
    """Draws a row of two panels for every workload that was timed: peers.png and peers.svg."""
    from matplotlib.figure import Figure

    workloads = [measured for measured in result['workloads'].values() if timed(measured)]
    most = max(len(timed(measured)) for measured in workloads)
    drawn = Figure(figsize=(8, (0.9 + 0.34 * most) * len(workloads)), layout='constrained')
    axes = drawn.subplots(len(workloads), 2, squeeze=False)
    for (left, right), measured in zip(axes, workloads, strict=True):
        sides = timed(measured)[::-1]  # the first one on top
        of_rounds = [rounds(measured, side) for side in sides]
        medians = list(map(statistics.median, of_rounds))
        spread = [
            [median - min(values) for median, values in zip(medians, of_rounds, strict=True)],
            [max(values) - median for median, values in zip(medians, of_rounds, strict=True)],
        ]
        _bars(left, sides, medians, xerr=spread, capsize=2, ecolor='#444444')
        left.set_xlabel('seconds per round')
        left.set_title(measured['workload']['title'], fontsize=10, loc='left')
        starts = [first(measured, side) for side in sides]
        _bars(right, sides, [cold for cold, _ in starts])
        later = [(warm, place) for place, (_, warm) in enumerate(starts) if warm is not None]
        if later:
            right.plot(*zip(*later, strict=True), 'k|', markersize=12, markeredgewidth=2, label='later starts')
            right.legend(frameon=False, fontsize=8)
        right.set_xlabel('seconds to the first round, first start')
    commands.save(drawn, folder / 'peers')


def _bars(axis, sides: list[str], widths: list[float], **more) -> None:
    bars = axis.barh([ALL[side].title for side in sides], widths, edgecolor='black', linewidth=0.6, **more)
    for bar, side in zip(bars, sides, strict=True):
        bar.set(facecolor=LOOKS[side == OURS.name]['color'], hatch=LOOKS[side == OURS.name].get('hatch'))
    axis.spines[['top', 'right']].set_visible(False)
