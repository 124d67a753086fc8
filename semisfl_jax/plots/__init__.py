"""Pictures of runs, readable in print and without color vision.

    python -m semisfl_jax.plots RUNDIR [RUNDIR ...] --out=DIR [--format=png,svg] [--only=accuracy_rounds,partition]

In a notebook, or for a figure of one's own, each plot is a function that takes data and Axes:

    with plots.style.context():
        figure, ax = plots.style.figure()
        plots.curves.accuracy(ax, plots.collect.curves(groups, 'accuracy'))

`style` says how everything looks, `looks` what sets methods and other groups apart, `legends` names them below a
figure; `curves`, `partitions`, `inside` (diagnostics), `features` and `grids` (tables) draw; `collect` reads what they
draw from runs; `draw` knows every figure by name. matplotlib is imported when the first figure is made.
"""

from semisfl_jax.plots import (
    collect,
    curves,
    draw,
    features,
    grids,
    inside,
    legends,
    looks,
    partitions,
    style,
)

__all__ = ['collect', 'curves', 'draw', 'features', 'grids', 'inside', 'legends', 'looks', 'partitions', 'style']
