"""Figures of groups of runs: metrics against rounds, bytes or time, and tables; means and standard errors over seeds.

Functions of Axes draw on them and return them; the other ones are the figures.
"""

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.plots import collect, draw, style
from semisfl_jax.lab.plots.collect import Curve, Groups
from semisfl_jax.lab.plots.style import Axes
from semisfl_jax.tasks import ACCURACY, BESIDE_ACCURACY, DENSE, SCORES, Score, score_key, smallest, split_key

X_LABELS = {'round': 'Round', 'gigabytes': 'Traffic (GiB)', 'minutes': 'Simulated time (min)'}
LOSS_LABELS = {
    'loss_supervised_ce': 'Server: cross-entropy',
    'loss_supervised_contrastive': 'Server: contrastive',
    'loss_consistency': 'Clients: consistency $H$',
    'loss_clustering': 'Clients: clustering $C$',
    'loss_fix': 'Clients: confident images',
    'loss_mix': 'Clients: mixtures',
    'loss_agreement': 'Clients: agreement',
    'loss_inter_client': 'Clients: inter-client',
    'loss_client_labels': 'Clients: own labels',
    **{f'{name}_loss': smallest(name).title for name in DENSE},
    'loss_local': 'Clients: total',
    'loss_global': "Clients: $F$ of the server's model",
}
MOST_PANELS = 4  # side by side on a page


def binned(curve: Curve, points: int) -> Curve:
    """Averages successive evaluations, and their bands, which are no narrower than that of the mean.

    Args:
      curve: the curve.
      points: the most points that are left.
    """
    width = -(-len(curve.x) // points)
    starts = np.arange(0, len(curve.x), max(width, 1))
    counts = np.diff([*starts, len(curve.x)])
    values = (curve.x, curve.mean, curve.low, curve.high)
    x, mean, low, high = (np.add.reduceat(each, starts) / counts for each in values)
    return curve._replace(x=x, mean=mean, low=low, high=high)


def levels(curves: Sequence[Curve]) -> list[Curve]:
    """Makes levels, at their last values, of curves that end in the first hundredth of the axis.

    They are of a server that trains alone, and sends nothing.

    Raises:
      UserError: all end at 0.
    """
    if not (end := max(curve.x[-1] for curve in curves)):
        raise UserError('none of the runs sends anything')
    last = [-1, -1]
    return [
        curve._replace(x=np.array([0.0, end]), mean=curve.mean[last], low=curve.low[last], high=curve.high[last])
        if curve.x[-1] <= 0.01 * end
        else curve
        for curve in curves
    ]


def lines(ax: Axes, curves: Sequence[Curve], scale: float = 1.0, steps: bool = False) -> Axes:
    """Draws means as lines, with their bands, which the legend names.

    Args:
      ax: where to draw.
      curves: what to draw.
      scale: factor of the values.
      steps: whether a value holds until the next one.
    """
    looks = style.looks([curve.label for curve in curves])
    shape = {'drawstyle': 'steps-post'} if steps else {}
    for place, curve in enumerate(curves):
        look = curve.look or looks[curve.label]
        ax.plot(curve.x, scale * curve.mean, label=curve.label, **look.line(len(curve.x), place), **shape)
        if np.isfinite(curve.low).any():
            band = {'color': look.color, 'alpha': 0.2, 'lw': 0, 'step': 'post' if steps else None}
            ax.fill_between(curve.x, scale * curve.low, scale * curve.high, **band)
    if any(np.isfinite(curve.low).any() for curve in curves):
        name = f'band: {style.INTERVALS[style.interval.get()]}'
        ax.fill([], [], color=style.GRAY, alpha=0.2, lw=0, label=name)
    return ax


def against(
    ax: Axes,
    curves: Sequence[Curve],
    label: str,
    x: str = 'round',
    scale: float = 1.0,
    steps: bool = False,
    from_zero: bool = False,
) -> Axes:
    """Draws `lines`, the labels of the axes, and the figure's legend.

    Args:
      ax: where to draw.
      curves: what to draw.
      label: of the y axis.
      x: a key of X_LABELS.
      scale: factor of the values.
      steps: whether a value holds until the next one.
      from_zero: whether the y axis begins at 0.
    """
    lines(ax, curves, scale, steps)
    ax.set(xlabel=X_LABELS[x], ylabel=textwrap.fill(label, 30, break_on_hyphens=False))
    if x == 'round':
        ax.xaxis.get_major_locator().set_params(integer=True)
    if from_zero:
        ax.set_ylim(bottom=0)
    style.legend(ax.figure)
    return ax


def score(ax: Axes, curves: Sequence[Curve], x: str = 'round', kind: Score = ACCURACY, split: str = 'test') -> Axes:
    """Draws a score.

    Args:
      ax: where to draw.
      curves: what to draw.
      x: a key of X_LABELS.
      kind: the score.
      split: 'test' or 'validation', the images behind it.
    """
    return against(ax, curves, f'{split.capitalize()} {kind.axis}', x, kind.scale)


def k_s(ax: Axes, curves: Sequence[Curve]) -> Axes:
    """Draws the supervised steps per round, as the controller adapts them.

    Args:
      ax: where to draw.
      curves: what to draw.
    """
    against(ax, curves, 'Supervised steps $K_s$', steps=True, from_zero=True)
    ax.yaxis.get_major_locator().set_params(integer=True)
    return ax


def table(ax: Axes, columns: Sequence[str], rows: Mapping[str, np.ndarray], unit: str) -> Axes:
    """Draws means with bars of one standard error, grouped by C columns; the paper's are hollow markers next to them.

    Args:
      ax: where to draw.
      columns: names [C].
      rows: {name: [3, C]}, means, standard errors and what the paper has, NaN where there is none.
      unit: label of the y axis.
    """
    place, step = np.arange(len(columns)), 0.8 / len(rows)
    looks = style.looks(list(rows))
    for number, (row, (mean, error, paper)) in enumerate(rows.items()):
        at, look = place + (number - (len(rows) - 1) / 2.0) * step, looks[row].point()
        bars = np.nan_to_num(error)
        ax.errorbar(at, mean, yerr=bars, linestyle='none', capsize=1.5, elinewidth=0.8, label=row, **look)
        ax.plot(at + 0.3 * step, paper, linestyle='none', markerfacecolor='none', **look)
    if any(np.isfinite(paper).any() for *_, paper in rows.values()):
        hollow = {'color': style.GRAY, 'markerfacecolor': 'none', 'label': 'paper (hollow)'}
        ax.errorbar([], [], fmt='o', **hollow)  # errorbar, like the rows, so that it follows them in the legend
    if any(np.isfinite(error).any() for _, error, _ in rows.values()):
        ax.errorbar([], [], yerr=[], fmt='none', ecolor=style.GRAY, label=f'bar: {style.INTERVALS["se"]}')
    letters = max(6, int(11 * ax.figure.get_figwidth() / len(columns)))
    ax.set_xticks(place, [textwrap.fill(name, letters) for name in columns])
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylabel=textwrap.fill(unit, 40))
    ax.grid(visible=False, axis='x')
    for between in place[1:] - 0.5:
        ax.axvline(between, color=style.NOTHING, linewidth=0.8)
    style.legend(ax.figure)
    return ax


def _accuracy(x: str, groups: Groups) -> Any:
    figure, ax = style.figure()
    lines = levels(collect.curves(groups, collect.SCORE, x))
    score(ax, lines, x, collect.score(groups), collect.eval_split(groups))
    return figure


draw.groups_figure('accuracy_rounds', 'test accuracy, or another score, against rounds')(partial(_accuracy, 'round'))
draw.groups_figure('accuracy_gigabytes', 'against traffic')(partial(_accuracy, 'gigabytes'))
draw.groups_figure('accuracy_minutes', 'against simulated time')(partial(_accuracy, 'minutes'))


@draw.groups_figure('scores', 'of each dense task, or those beside accuracy, against rounds')
def _scores(groups: Groups) -> Any:
    tasks = map(smallest, DENSE)
    kinds = {score_key(task.name, task.score.name): (task.score, task.title) for task in tasks}
    kinds |= {kind.name: (kind, '') for kind in BESIDE_ACCURACY}
    scores = collect.curves_by_name(groups, {key: key for key in kinds})
    if not scores:
        raise UserError('no run has dense tasks, or scores beside accuracy')
    figure, axes = _panels(len(scores))
    for ax, (key, curves) in zip(axes, scores.items(), strict=True):
        kind, title = kinds[key]
        score(ax, curves, kind=kind, split=collect.eval_split(groups))
        ax.set(title=title, ylabel=textwrap.fill(ax.get_ylabel(), 24))
    return figure


def metric(key: str, groups: Groups) -> Any:
    """Makes the figure of a key of metrics.jsonl, or of a score of the headline by its name, against rounds."""
    figure, ax = style.figure()
    lines, judged = collect.curves(groups, key), split_key(key)
    if kind := judged.score if judged else SCORES.get(key):
        score(ax, lines, kind=kind, split=f'{judged.output if judged else ""} {collect.eval_split(groups)}'.strip())
    else:
        against(ax, lines, key)
    ax.set_title(key)
    return figure


@draw.groups_figure('k_s', 'supervised steps of a round')
def _k_s(groups: Groups) -> Any:
    steps = collect.curves(groups, 'k_s')
    if not any(curve.mean.any() for curve in steps):
        raise UserError('no run has supervised steps at the server (k_s=0)')
    figure, ax = style.figure()
    k_s(ax, steps)
    return figure


@draw.groups_figure('pseudo_labels', 'the share that is confident, and the error of these')
def _pseudo_labels(groups: Groups) -> Any:
    # None are right if no label was ever confident, or true classes are unknown
    confident, key = collect.curves(groups, 'mask_rate'), 'pseudo_label_accuracy'
    right = collect.curves_by_name(groups, {key: key}).get(key, [])
    figure, axes = style.figure(1, 2, 'page')
    against(axes[0], confident, 'Confident pseudo-labels (%)', scale=100.0, from_zero=True)
    wrong = [curve._replace(mean=1.0 - curve.mean, low=1.0 - curve.high, high=1.0 - curve.low) for curve in right]
    against(axes[1], wrong, 'Error of confident pseudo-labels (%)', scale=100.0, from_zero=True)
    axes[1].set_xlim(axes[0].get_xlim())  # the right curve has no values before the first confident label
    return figure


@draw.groups_figure('losses', 'a panel for each loss')
def _losses(groups: Groups) -> Any:
    losses = collect.curves_by_name(groups, {key: key for key in LOSS_LABELS})
    contrast = 'loss_supervised_contrastive'  # is written by all methods with a server, as 0 where there is none
    losses[contrast] = [curve for curve in losses.get(contrast, []) if curve.mean.any()]
    losses = {name: curves for name, curves in losses.items() if curves}
    if not losses:
        raise UserError('no run has a loss in its metrics.jsonl')
    dense = any(f'{name}_loss' in losses for name in DENSE)
    figure, axes = _panels(len(losses))
    for ax, (name, curves) in zip(axes, losses.items(), strict=True):
        against(ax, curves, 'Loss' if ax.get_subplotspec().is_first_col() else '')
        ax.set_title('Mean over tasks' if dense and name == 'loss_local' else LOSS_LABELS[name])
    return figure


def _panels(count: int) -> tuple[Any, np.ndarray]:
    """Makes a figure as wide as a page, and its `count` Axes."""
    rows = -(-count // MOST_PANELS)
    figure, axes = style.figure(rows, -(-count // rows), 'page', 1.9)
    axes = np.atleast_1d(axes).ravel()
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]
