"""What runs measured against rounds, bytes or time: mean and standard error over seeds.

Every function draws its data on Axes and returns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from semisfl_jax.plots import style

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
    'loss_local': 'Clients: total',
}


class Curve(NamedTuple):
    """One quantity of one group of runs, at E rounds."""

    label: str  # of the group
    x: np.ndarray  # [E]
    mean: np.ndarray  # [E] over seeds
    error: np.ndarray  # [E] standard error of the mean, NaN with one seed


def lines(ax, curves: Sequence[Curve], scale: float = 1.0, steps: bool = False):
    """Means as lines, with bands of one standard error.

    Args:
      ax: Axes.
      curves: in the order of the legend.
      scale: of the y axis, 100 for per cent.
      steps: a value holds until the next one.
    """
    shape = {'drawstyle': 'steps-post'} if steps else {}
    for place, curve in enumerate(curves):
        mean, error = scale * curve.mean, scale * curve.error
        look = style.line(place, len(curve.x))
        ax.plot(curve.x, mean, label=curve.label, **look, **shape)
        if np.isfinite(error).any():
            step = 'post' if steps else None
            ax.fill_between(curve.x, mean - error, mean + error, color=look['color'], alpha=0.2, lw=0, step=step)
    return ax


def accuracy(ax, curves: Sequence[Curve], x: str = 'round'):
    """Test accuracy; `x` is a key of X_LABELS, and `mean` a share in [0, 1]."""
    lines(ax, curves, scale=100.0)
    _x(ax, x)
    ax.set_ylabel('Test accuracy (%)')
    style.legend(ax)
    return ax


def k_s(ax, curves: Sequence[Curve]):
    """Supervised steps per round, which the controller adapts."""
    lines(ax, curves, steps=True)
    ax.set_ylim(bottom=0)
    ax.yaxis.get_major_locator().set_params(integer=True)
    _x(ax, 'round')
    ax.set_ylabel('Supervised steps $K_s$')
    style.legend(ax)
    return ax


def pseudo_labels(axes, mask_rate: Sequence[Curve], accuracy: Sequence[Curve]):
    """Two panels: the share of confident pseudo-labels, and the share of these that is wrong; both in per cent.

    Args:
      axes: two Axes.
      mask_rate: shares in [0, 1].
      accuracy: of confident pseudo-labels, in [0, 1].
    """
    left, right = axes
    lines(left, mask_rate, scale=100.0)
    lines(right, [curve._replace(mean=1.0 - curve.mean) for curve in accuracy], scale=100.0)
    left.set_ylabel('Confident pseudo-labels (%)')
    right.set_ylabel('Wrong among confident (%)')
    for ax in axes:
        ax.set_ylim(bottom=0)
        _x(ax, 'round')
    right.set_xlim(left.get_xlim())  # where there is no confident label yet, none is wrong
    style.legend(left, shared=True)
    return axes


def losses(axes, by_name: dict[str, Sequence[Curve]]):
    """A panel for each loss of the metrics; one legend serves all. Panels left over are taken away.

    Args:
      axes: as many Axes as there are losses, or more.
      by_name: name in metrics.jsonl -> curves.
    """
    for ax, (name, curves) in zip(axes, by_name.items(), strict=False):
        lines(ax, curves)
        ax.set_title(LOSS_LABELS.get(name, name))
        _x(ax, 'round')
    for ax in axes[len(by_name) :]:
        ax.remove()
    axes[0].set_ylabel('Loss')
    style.legend(axes[0], shared=True)
    return axes[: len(by_name)]


def _x(ax, x: str) -> None:
    ax.set_xlabel(X_LABELS[x])
    if x == 'round':
        ax.xaxis.get_major_locator().set_params(integer=True)
