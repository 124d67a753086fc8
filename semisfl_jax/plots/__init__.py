"""Figures of runs, readable in print and without color vision.

    python -m semisfl_jax.plots RUNDIR [RUNDIR ...] --out=DIR
        [--format=png,svg] [--only=accuracy_rounds,partition]

In a notebook, or for custom figures, each plot is a function that takes data and Axes:

    with plots.style.context():
        figure, ax = plots.style.figure()
        plots.curves.score(ax, plots.collect.curves(groups, 'score'))

`style` defines the common style, `looks` the colors, markers and dashes of methods and other groups, `legends` the
legend below a figure; `curves`, `partitions`, `inside` (diagnostics), `features`, `maps` (dense tasks) and `grids`
(tables) draw; `collect` reads their data from runs; `draw` maps names to figures. matplotlib is imported when the first
figure is made.
"""

from semisfl_jax.plots import collect, curves, draw, features, grids, inside, legends, looks, maps, partitions, style

__all__ = [
    'collect',
    'curves',
    'draw',
    'features',
    'grids',
    'inside',
    'legends',
    'looks',
    'maps',
    'partitions',
    'style',
]
