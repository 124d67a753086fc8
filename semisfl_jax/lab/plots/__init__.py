# ruff: noqa: F401
"""Figures of runs, readable in print and without color vision.

In a notebook, or for custom figures, each plot is a function that takes data and Axes:

    with plots.style.context():
        figure, ax = plots.style.figure()
        plots.curves.score(ax, plots.collect.curves(groups, 'score'))

`style` defines sizes, the legend, and the looks of methods and other groups; `collect` reads data from runs; `curves`
draws lines and tables of groups of runs, `inside` what is in one run; `draw` maps names to figures. matplotlib is
imported when the first figure is made.
"""

from semisfl_jax.lab.plots import collect, curves, draw, inside, style
