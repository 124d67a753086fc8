"""The figures of a sweep, as file contents: the best so far of every method, and a slice through its search by key."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.types import Axes
from semisfl_jax.plots import style
from semisfl_jax.studies import figures as studies_figures
from semisfl_jax.studies.figures import Figure
from semisfl_jax.studies.sweeps.measure import Judge
from semisfl_jax.studies.sweeps.results import Result
from semisfl_jax.studies.sweeps.search import COMPLETE, Trial

_PANELS = 3  # in a row
FAR = 4.0  # times the median distance from the best: scores beyond it would flatten all others


def draw(results: Sequence[Result]) -> Iterator[Figure]:
    """All figures: the first of all methods, then one of each method, whose title is the figure's `table`."""
    with style.context():
        shown = [result for result in results if result.judge and result.best is not None]
        if shown:
            caption = 'Best validation score so far against the number of trials'
            yield _figure('best', '', caption, _best(shown))
        for result in shown:
            if result.judge and len(result.trials) > 1:
                caption = (
                    f'{result.entry.title}: validation score against every key that was searched. Ring: untuned; star: '
                    'the best; at the edge, crosses: stopped early, or not finite; triangles: far worse than most'
                )
                slug = studies_figures.slug(result.entry.title)
                yield _figure(f'search-{slug}', result.entry.title, caption, _slices(result, result.judge))


def _figure(name: str, table: str, caption: str, figure: Any) -> Figure:
    return Figure(name, table, caption, *studies_figures.pictures(figure))


def _best(results: Sequence[Result]) -> Any:
    figure, ax = style.figure()
    look = style.looks([result.entry.title for result in results])
    for place, result in enumerate(results):
        judge = result.judge
        assert judge is not None
        line = _running(result.trials, judge)
        title = result.entry.title
        ax.plot(range(len(line)), line, label=title, **look[title].line(len(line), place))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel('Trial (0: untuned)')
    ax.set_ylabel(_label(results[0].judge))
    style.legend(figure)
    return figure


def _running(trials: Sequence[Trial], judge: Judge) -> list[float]:
    values: list[float] = []
    for trial in trials:
        known = [*values[-1:], *([] if trial.score is None else [judge.score.scale * trial.score])]
        values.append(judge.score.best(known))
    return values


def _slices(result: Result, judge: Judge) -> Any:
    """A panel for every key."""
    ranges, best = result.entry.ranges, result.best
    if best is None:
        raise UserError('no trial has ended')
    columns = min(_PANELS, len(ranges))
    rows = -(-len(ranges) // columns)
    figure, axes = style.figure(rows, columns, width='page' if columns > 1 else 'column', height=2.0)
    panels = [axes] if len(ranges) == 1 else list(axes.flat)
    color = style.looks([result.entry.title])[result.entry.title].color
    higher = judge.score.higher_is_better
    edge, arrow = (0.03, 'v') if higher else (0.97, '^')
    worst = farthest(
        [trial.score for trial in result.trials if trial.state == COMPLETE and trial.score is not None], higher
    )
    for ax, (key, range_) in zip(panels, ranges.items(), strict=False):
        names = [str(value) for value in range_.values]

        def at(trial: Trial, key: str = key, names: list[str] = names) -> float:
            return names.index(str(trial.values[key])) if names else trial.values[key]

        for number, trial in enumerate(result.trials):
            in_axes = ax.get_xaxis_transform()
            if trial.state != COMPLETE or trial.score is None:  # a score on the way would not compare
                ax.plot(at(trial), edge, 'x', color=style.GRAY, linestyle='none', transform=in_axes)
            elif number and (trial.score < worst if higher else trial.score > worst):
                ax.plot(at(trial), edge, arrow, color=color, linestyle='none', alpha=0.7, transform=in_axes)
            else:
                ax.plot(at(trial), judge.score.scale * trial.score, 'o', color=color, linestyle='none', alpha=0.7)
        for number, marker, size in ((0, 'o', 9), (best, '*', 9)):
            trial = result.trials[number]
            assert trial.score is not None
            fill = 'none' if marker == 'o' else color
            ax.plot(
                at(trial),
                judge.score.scale * trial.score,
                marker,
                markersize=size,
                markerfacecolor=fill,
                markeredgecolor=style.BLACK,
                linestyle='none',
            )
        _axis(ax, range_, names)
        ax.margins(y=0.12)  # room for what stands at the edge
        ax.set_xlabel(key)
    for ax in panels[::columns]:
        ax.set_ylabel(_label(judge))
    for ax in panels[len(ranges) :]:
        ax.remove()
    return figure


def farthest(scores: Sequence[float], higher: bool) -> float:
    """The worst score that a panel shows, FAR times as far from the best one as the median is."""
    best, middle = (max if higher else min)(scores), statistics.median(scores)
    return best + FAR * (middle - best)


def _axis(ax: Axes, range_: Range, names: Sequence[str]) -> None:
    """The whole range of a key, with a little air."""
    if names:
        ax.set_xticks(range(len(names)), names)
        ax.set_xlim(-0.5, len(names) - 0.5)
    elif range_.scale == 'log':
        air = (range_.high / range_.low) ** 0.05
        ax.set_xscale('log')
        ax.set_xlim(range_.low / air, range_.high * air)
        ax.xaxis.set_minor_formatter('')
    else:
        air = 0.05 * (range_.high - range_.low)
        ax.set_xlim(range_.low - air, range_.high + air)


def _label(judge: Judge | None) -> str:
    assert judge is not None
    unit = f' ({judge.score.unit})' if judge.score.unit else ''
    return f'Validation {judge.score.label}{unit}'
