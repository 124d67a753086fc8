"""Figures of groups of runs: metrics against rounds, bytes or time, and tables; means and standard errors over seeds.

Functions of Axes draw on them and return them; the other ones are the figures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from semisfl_jax.core.errors import UserError
from semisfl_jax.core.types import Axes
from semisfl_jax.plots import collect, draw, style
from semisfl_jax.plots.collect import Curve, Groups
from semisfl_jax.tasks import ACCURACY, DENSE, Score, score_key, smallest

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
    """Means of successive evaluations, at most `points`, with the mean of their errors, at least that of the mean."""
    width = -(-len(curve.x) // points)
    starts = np.arange(0, len(curve.x), max(width, 1))
    counts = np.diff([*starts, len(curve.x)])
    x, mean, error = (np.add.reduceat(v, starts) / counts for v in (curve.x, curve.mean, curve.error))
    return curve._replace(x=x, mean=mean, error=error)


def lines(ax: Axes, curves: Sequence[Curve], scale: float = 1.0, steps: bool = False) -> Axes:
    """Means as lines, with bands of one standard error; with `steps`, a value holds until the next one."""
    looks = style.looks([curve.label for curve in curves])
    shape = {'drawstyle': 'steps-post'} if steps else {}
    for place, curve in enumerate(curves):
        look, mean, error = curve.look or looks[curve.label], scale * curve.mean, scale * curve.error
        ax.plot(curve.x, mean, label=curve.label, **look.line(len(curve.x), place), **shape)
        if np.isfinite(error).any():
            step = 'post' if steps else None
            ax.fill_between(curve.x, mean - error, mean + error, color=look.color, alpha=0.2, lw=0, step=step)
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
    """`lines` with labels of the axes, and the figure's legend; `x` is a key of X_LABELS."""
    lines(ax, curves, scale, steps)
    ax.set(xlabel=X_LABELS[x], ylabel=label)
    if x == 'round':
        ax.xaxis.get_major_locator().set_params(integer=True)
    if from_zero:
        ax.set_ylim(bottom=0)
    style.legend(ax.figure)
    return ax


def score(ax: Axes, curves: Sequence[Curve], x: str = 'round', kind: Score = ACCURACY, split: str = 'test') -> Axes:
    """The score `kind` on the test or, by `split`, the validation images; `x` is a key of X_LABELS."""
    return against(ax, curves, f'{split.capitalize()} {kind.axis}', x, kind.scale)


def k_s(ax: Axes, curves: Sequence[Curve]) -> Axes:
    """Supervised steps per round, as adapted by the controller."""
    against(ax, curves, 'Supervised steps $K_s$', steps=True, from_zero=True)
    ax.yaxis.get_major_locator().set_params(integer=True)
    return ax


def table(
    ax: Axes,
    columns: Sequence[str],
    ours: Mapping[str, tuple[np.ndarray, np.ndarray]],
    paper: Mapping[str, np.ndarray],
    unit: str,
) -> Axes:
    """Means with bars of one standard error, grouped by the C columns; the paper's are hollow markers next to them.

    `ours`: row -> means [C] and standard errors [C]; `paper`: row -> values [C]; both NaN where missing. `unit`: label
    of the y axis.
    """
    rows = list(dict.fromkeys([*ours, *paper]))
    place, missing = np.arange(len(columns)), np.full(len(columns), np.nan)
    step = 0.8 / max(1, len(rows))
    looks = style.looks(rows)
    for number, row in enumerate(rows):
        at = place + (number - (len(rows) - 1) / 2.0) * step
        mean, error = ours.get(row, (missing, missing))
        bars = np.where(np.isfinite(error), error, 0.0)
        look = looks[row].point()
        ax.errorbar(at, mean, yerr=bars, linestyle='none', capsize=1.5, elinewidth=0.8, label=row, **look)
        ax.plot(at + 0.3 * step, paper.get(row, missing), linestyle='none', markerfacecolor='none', **look)
    if any(np.isfinite(values).any() for values in paper.values()):
        hollow = {'color': style.GRAY, 'markerfacecolor': 'none', 'label': 'paper (hollow)'}
        ax.errorbar([], [], fmt='o', **hollow)  # errorbar, like the rows, so that it follows them in the legend
    letters = max(6, int(11 * ax.figure.get_figwidth() / len(columns)))
    ax.set_xticks(place, [textwrap.fill(name, letters) for name in columns])
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylabel=textwrap.fill(unit, 40))
    ax.grid(visible=False, axis='x')
    style.legend(ax.figure)
    return ax


def _accuracy(x: str, groups: Groups) -> Any:
    figure, ax = style.figure()
    score(ax, collect.curves(groups, collect.SCORE, x), x, collect.score(groups), collect.eval_split(groups))
    return figure


draw.of_groups('accuracy_rounds', 'test accuracy, or another score, against rounds')(partial(_accuracy, 'round'))
draw.of_groups('accuracy_gigabytes', 'against traffic')(partial(_accuracy, 'gigabytes'))
draw.of_groups('accuracy_minutes', 'against simulated time')(partial(_accuracy, 'minutes'))


@draw.of_groups('scores', 'of each dense task against rounds')
def _scores(groups: Groups) -> Any:
    of_tasks = collect.each(groups, {name: score_key(name, smallest(name).score.name) for name in DENSE})
    if not of_tasks:
        raise UserError('no run has dense tasks')
    figure, axes = _panels(len(of_tasks))
    for ax, (name, curves) in zip(axes, of_tasks.items(), strict=True):
        score(ax, curves, kind=smallest(name).score, split=collect.eval_split(groups))
        ax.set(title=smallest(name).title, ylabel=textwrap.fill(ax.get_ylabel(), 24))
    return figure


@draw.of_groups('k_s', 'supervised steps of a round')
def _k_s(groups: Groups) -> Any:
    steps = collect.curves(groups, 'k_s')
    if not any(curve.mean.any() for curve in steps):
        raise UserError('no run has supervised steps at the server (k_s=0)')
    figure, ax = style.figure()
    k_s(ax, steps)
    return figure


@draw.of_groups('pseudo_labels', 'the share that is confident, and the share of these that is wrong')
def _pseudo_labels(groups: Groups) -> Any:
    confident = collect.curves(groups, 'mask_rate')
    try:
        right = collect.curves(groups, 'pseudo_label_accuracy')
    except UserError:  # no label was ever confident, or true classes are unknown
        right = []
    figure, axes = style.figure(1, 2, 'page')
    against(axes[0], confident, 'Confident pseudo-labels (%)', scale=100.0, from_zero=True)
    wrong = [curve._replace(mean=1.0 - curve.mean) for curve in right]
    against(axes[1], wrong, 'Wrong among confident (%)', scale=100.0, from_zero=True)
    axes[1].set_xlim(axes[0].get_xlim())  # the right curve has no values before the first confident label
    return figure


@draw.of_groups('losses', 'a panel for each loss')
def _losses(groups: Groups) -> Any:
    losses = collect.each(groups, {key: key for key in LOSS_LABELS})
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
    """A figure as wide as a page, and its `count` Axes."""
    rows = -(-count // MOST_PANELS)
    figure, axes = style.figure(rows, -(-count // rows), 'page', 1.9)
    axes = np.atleast_1d(axes).ravel()
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]
