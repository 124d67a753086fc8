"""Metrics of runs against rounds, bytes or time: mean and standard error over seeds.

Every function draws its data on Axes and returns them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from semisfl_jax.core.types import Axes
from semisfl_jax.plots import style
from semisfl_jax.plots.style import Look
from semisfl_jax.tasks import ACCURACY, DENSE, Score, smallest

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
LETTERS = 24  # beside one of several rows of panels
MEAN_LOSS = 'Mean over tasks'  # instead of their total, in a figure with losses of dense tasks


class Curve(NamedTuple):
    """One quantity of one group of runs, at E rounds."""

    label: str  # of the group
    x: np.ndarray  # [E]
    mean: np.ndarray  # [E] over seeds
    error: np.ndarray  # [E] standard error of the mean, NaN with one seed
    look: Look | None = None  # None: assigned by its label among the curves it is drawn with


def binned(curve: Curve, points: int) -> Curve:
    """Means of successive evaluations, so many that at most `points` are left; a curve with fewer is as it was.

    The error is the mean of the errors, which is at least that of the mean.
    """
    width = -(-len(curve.x) // points)
    starts = np.arange(0, len(curve.x), max(width, 1))
    counts = np.diff([*starts, len(curve.x)])
    x, mean, error = (np.add.reduceat(v, starts) / counts for v in (curve.x, curve.mean, curve.error))
    return curve._replace(x=x, mean=mean, error=error)


def lines(ax: Axes, curves: Sequence[Curve], scale: float = 1.0, steps: bool = False) -> Axes:
    """Means as lines, with bands of one standard error.

    Args:
      ax: Axes.
      curves: in the order of the legend, which the caller draws.
      scale: of the y axis, 100 for percent.
      steps: whether a value holds until the next one.
    """
    shape = {'drawstyle': 'steps-post'} if steps else {}
    for place, (curve, look) in enumerate(zip(curves, _looks(curves), strict=True)):
        mean, error = scale * curve.mean, scale * curve.error
        ax.plot(curve.x, mean, label=curve.label, **look.line(len(curve.x), place), **shape)
        if np.isfinite(error).any():
            step = 'post' if steps else None
            ax.fill_between(curve.x, mean - error, mean + error, color=look.color, alpha=0.2, lw=0, step=step)
    return ax


def score(ax: Axes, curves: Sequence[Curve], x: str = 'round', kind: Score = ACCURACY, split: str = 'test') -> Axes:
    """The score `kind` on the test or, by `split`, the validation images; `x` is a key of X_LABELS."""
    lines(ax, curves, scale=kind.scale)
    _x(ax, x)
    ax.set_ylabel(f'{split.capitalize()} {kind.label}{_unit(kind)}')
    style.legend(ax.figure)
    return ax


def loss(ax: Axes, curves: Sequence[Curve]) -> Axes:
    """Training loss of the clients."""
    lines(ax, curves)
    _x(ax, 'round')
    ax.set_ylabel('Training loss')
    style.legend(ax.figure)
    return ax


def spread(ax: Axes, curves: Sequence[Curve], kind: Score = ACCURACY) -> Axes:
    """Standard deviation of the score `kind` over seeds."""
    lines(ax, curves, scale=kind.scale)
    ax.set_ylim(bottom=0)
    _x(ax, 'round')
    ax.set_ylabel(f'Deviation of the {kind.label}{_unit(kind)}')
    style.legend(ax.figure)
    return ax


def k_s(ax: Axes, curves: Sequence[Curve]) -> Axes:
    """Supervised steps per round, as adapted by the controller."""
    lines(ax, curves, steps=True)
    ax.set_ylim(bottom=0)
    ax.yaxis.get_major_locator().set_params(integer=True)
    _x(ax, 'round')
    ax.set_ylabel('Supervised steps $K_s$')
    style.legend(ax.figure)
    return ax


def pseudo_labels(axes: np.ndarray, mask_rate: Sequence[Curve], accuracy: Sequence[Curve]) -> np.ndarray:
    """Two panels: the share of confident pseudo-labels, and the share of these that are wrong; both in percent.

    Args:
      axes: two Axes.
      mask_rate: shares in [0, 1].
      accuracy: of confident pseudo-labels, in [0, 1].
    """
    left, right = axes
    all_ = _with_looks([*mask_rate, *accuracy])
    lines(left, all_[: len(mask_rate)], scale=100.0)
    lines(right, [curve._replace(mean=1.0 - curve.mean) for curve in all_[len(mask_rate) :]], scale=100.0)
    left.set_ylabel('Confident pseudo-labels (%)')
    right.set_ylabel('Wrong among confident (%)')
    for ax in axes:
        ax.set_ylim(bottom=0)
        _x(ax, 'round')
    right.set_xlim(left.get_xlim())  # the right curve has no values before the first confident label
    style.legend(left.figure)
    return axes


def losses(axes: np.ndarray, by_name: Mapping[str, Sequence[Curve]]) -> np.ndarray:
    """A panel for each loss of the metrics, with one legend for all; surplus panels are removed.

    Args:
      axes: as many Axes as there are losses, or more.
      by_name: name in metrics.jsonl -> curves.
    """
    dense = any(f'{name}_loss' in by_name for name in DENSE)
    for ax, name in _panels(axes, by_name):
        ax.set_title(MEAN_LOSS if dense and name == 'loss_local' else LOSS_LABELS.get(name, name))
        place = ax.get_subplotspec()
        if place is None or place.is_first_col():
            ax.set_ylabel('Loss')
    return axes[: len(by_name)]


def scores(axes: np.ndarray, by_task: Mapping[str, Sequence[Curve]], split: str = 'test') -> np.ndarray:
    """A panel for each dense task with the score that counts in it, and one legend for all; surplus panels are removed.

    Args:
      axes: as many Axes as there are tasks, or more.
      by_task: name of a task -> curves.
      split: what the scores are of, 'test' or 'validation' images.
    """
    for ax, name in _panels(axes, by_task, scale=lambda name: smallest(name).score.scale):
        task = smallest(name)
        ax.set_title(task.title)
        ax.set_ylabel(textwrap.fill(f'{split.capitalize()} {task.score.label}{_unit(task.score)}', LETTERS))
    return axes[: len(by_task)]


def _panels(
    axes: np.ndarray, by_name: Mapping[str, Sequence[Curve]], scale: Callable[[str], float] = lambda name: 1.0
) -> Iterator[tuple[Axes, str]]:
    """Draws the curves of each name against rounds, with the legend; surplus panels are removed.

    Returns:
      Pairs of Axes and name.
    """
    styled = iter(_with_looks([curve for curves in by_name.values() for curve in curves]))
    for ax, (name, curves) in zip(axes, by_name.items(), strict=False):
        lines(ax, [next(styled) for _ in curves], scale=scale(name))
        _x(ax, 'round')
    for ax in axes[len(by_name) :]:
        ax.remove()
    style.legend(axes[0].figure)
    return zip(axes, by_name, strict=False)


def _unit(kind: Score) -> str:
    return f' ({kind.unit})' if kind.unit else ''


def _with_looks(curves: Sequence[Curve]) -> list[Curve]:
    """The curves of a figure, with looks assigned to those that have none."""
    return [curve._replace(look=look) for curve, look in zip(curves, _looks(curves), strict=True)]


def _looks(curves: Sequence[Curve]) -> list[Look]:
    """The look of every curve of a figure."""
    assigned = style.looks([curve.label for curve in curves])
    return [curve.look or assigned[curve.label] for curve in curves]


def _x(ax: Axes, x: str) -> None:
    ax.set_xlabel(X_LABELS[x])
    if x == 'round':
        ax.xaxis.get_major_locator().set_params(integer=True)


# Tables as figures: values of several rows in several columns, ours beside the paper's.

LETTERS_PER_INCH = 11  # per inch of text below an axis


def table(
    ax: Axes,
    columns: Sequence[str],
    ours: Mapping[str, tuple[np.ndarray, np.ndarray]],
    paper: Mapping[str, np.ndarray],
    unit: str,
    column_name: str = '',
) -> Axes:
    """Means with bars of one standard error, grouped by column; the paper's values are hollow markers beside them.

    Args:
      ax: Axes.
      columns: C names.
      ours: row -> means [C] and standard errors [C], NaN where missing.
      paper: row -> values [C], NaN where missing.
      unit: label of the y axis.
      column_name: label of the x axis.
    """
    rows = list(dict.fromkeys([*ours, *paper]))
    place = np.arange(len(columns))
    step = 0.8 / max(1, len(rows))
    missing = np.full(len(columns), np.nan)
    row_looks = style.looks(rows)
    for number, row in enumerate(rows):
        look = row_looks[row].point()
        at = place + (number - (len(rows) - 1) / 2.0) * step
        mean, error = ours.get(row, (missing, missing))
        bars = np.where(np.isfinite(error), error, 0.0)
        ax.errorbar(at, mean, yerr=bars, linestyle='none', capsize=1.5, elinewidth=0.8, label=row, **look)
        paper_values = paper.get(row, missing)
        ax.plot(at + 0.3 * step, paper_values, linestyle='none', markerfacecolor='none', **look)
    if any(np.isfinite(values).any() for values in paper.values()):
        hollow = {'color': style.GRAY, 'markerfacecolor': 'none', 'label': 'paper (hollow)'}
        ax.errorbar([], [], fmt='o', **hollow)  # errorbar, like the rows, so that it follows them in the legend
    width = max(6, int(LETTERS_PER_INCH * ax.figure.get_figwidth() / len(columns)))
    ax.set_xticks(place, [textwrap.fill(name, width) for name in columns])
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_xlabel(column_name)
    ax.set_ylabel(textwrap.fill(unit, 40))
    ax.grid(visible=False, axis='x')
    style.legend(ax.figure)
    return ax
