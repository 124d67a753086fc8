"""Diagnostics: pseudo-labels by class and by client, the queue, the gap between teacher and student.

The arrays are those of `semisfl_jax.training.diagnostics`; every function draws on Axes and returns them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semisfl_jax.core.types import Axes
from semisfl_jax.plots import legends, looks, style
from semisfl_jax.training.diagnostics import Rates

MOST_NUMBERS = 12  # most classes for which a confusion matrix shows its numbers
MOST_BARS = 20  # most pairs of bars, and most classes labeled on an axis


def confusion(ax: Axes, counts: np.ndarray, given: str = 'Pseudo-label') -> Axes:
    """Share of each label among the labels of a true class, in percent; a class without labels stays gray.

    Args:
      ax: Axes.
      counts: [K, K] or, with images of unknown class, which are left out, [K + 1, K]: true class, label.
      given: label of the x axis.
    """
    counts = counts[: counts.shape[1]]
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(100.0 * counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
    shades = ax.imshow(share, cmap=style.SEQUENTIAL, vmin=0, vmax=100, interpolation='nearest')
    ax.figure.colorbar(shades, ax=ax, label='Share of the true class (%)')
    ax.grid(visible=False)
    ax.set_facecolor(style.NOTHING)
    ax.set_xlabel(given)
    ax.set_ylabel('True class')
    if len(counts) <= MOST_NUMBERS:
        ax.set_xticks(range(len(counts)))
        ax.set_yticks(range(len(counts)))
        for row, column in zip(*np.nonzero(counts), strict=True):
            if share[row, column] >= 0.5:
                color = 'white' if share[row, column] > 60 else 'black'
                ax.text(
                    column, row, f'{share[row, column]:.0f}', ha='center', va='center', color=color, fontsize='x-small'
                )
    return ax


def rates(ax: Axes, values: Rates, of: str = 'Class') -> Axes:
    """Mask rate and accuracy of pseudo-labels as pairs of bars, or of points if there are many, in percent.

    Args:
      ax: Axes.
      values: rates [n] of classes or clients; NaN is not drawn.
      of: label of the x axis.
    """
    place = np.arange(len(values.mask))
    mask, accuracy = (100.0 * rate for rate in values)
    names = 'confident', 'right among confident'
    if len(place) <= MOST_BARS:
        edge = {'width': 0.4, 'edgecolor': 'black', 'linewidth': 0.4}
        ax.bar(place - 0.2, mask, color=style.BLUE, label=names[0], **edge)
        ax.bar(place + 0.2, accuracy, color=style.ORANGE, hatch='////', label=names[1], **edge)
        ax.set_xticks(place)
    else:
        ax.plot(place, mask, 'o', color=style.BLUE, label=names[0])
        ax.plot(place, accuracy, '^', color=style.VERMILION, markerfacecolor='none', label=names[1])
    ax.set_ylim(0, 103)
    ax.set_xlabel(of)
    ax.set_ylabel('Pseudo-labels (%)')
    ax.grid(visible=False, axis='x')
    legends.below(ax.figure)
    return ax


def mask_history(ax: Axes, rounds: Sequence[int], mask: np.ndarray) -> Axes:
    """Mask rate of every class over the rounds as shades; each row of pixels is a class, each column a file.

    Args:
      ax: Axes.
      rounds: [R], ascending.
      mask: [R, K], shares.
    """
    edges = np.concatenate([[rounds[0] - _half(rounds, 0)], _middles(rounds), [rounds[-1] + _half(rounds, -1)]])
    classes = np.arange(mask.shape[1] + 1) - 0.5
    shades = ax.pcolormesh(edges, classes, 100.0 * mask.T, cmap=style.SEQUENTIAL, vmin=0, vmax=100)
    ax.set_facecolor(style.NOTHING)
    ax.figure.colorbar(shades, ax=ax, label='Confident pseudo-labels (%)')
    ax.grid(visible=False)
    if mask.shape[1] <= MOST_BARS:
        ax.set_yticks(range(mask.shape[1]))
    ax.set_xlabel('Round')
    ax.set_ylabel('True class')
    return ax


def queue(ax: Axes, counts: np.ndarray, empty: int, level: str) -> Axes:
    """Slots of one level of the queue by label, stacked: correct, wrong, of unknown class, not confident.

    Args:
      ax: Axes.
      counts: [2, K + 1, K], see `semisfl_jax.training.diagnostics`.
      empty: slots without a key.
      level: its name.
    """
    unsure, sure = counts
    place, correct = np.arange(counts.shape[2]), np.diagonal(sure)
    parts = {
        'right': (correct, style.GREEN, ''),
        'wrong': (sure[:-1].sum(axis=0) - correct, style.VERMILION, '////'),
        'class unknown': (sure[-1], style.SKY, '....'),
        'not confident': (unsure.sum(axis=0), 'white', ''),
    }
    below = np.zeros(len(place))
    for name, (slots, color, hatch) in parts.items():
        if slots.any():
            ax.bar(place, slots, bottom=below, color=color, hatch=hatch, label=name, edgecolor='black', linewidth=0.4)
        below = below + slots
    title = f'{level.capitalize()} level' if level != 'ring' else 'Ring'
    ax.set_title(f'{title}: {int(counts.sum())} of {int(counts.sum()) + int(empty)} slots filled')
    if len(place) <= MOST_BARS:
        ax.set_xticks(place)
    ax.grid(visible=False, axis='x')
    ax.set_xlabel('Label')
    ax.set_ylabel('Slots')
    return ax


def gap(
    axes: np.ndarray, rounds: Sequence[int], distance: np.ndarray, pieces: Sequence[str], agreement: Sequence[float]
) -> np.ndarray:
    """Two panels: distance of teacher and student parameters, and how often both predict the same class.

    Args:
      axes: two Axes.
      rounds: [R].
      distance: [R, 3], relative to the norm of the student's parameters; NaN for a piece without parameters.
      pieces: their names.
      agreement: [R], share of test images.
    """
    left, right = axes
    names = {'bottom': 'bottom', 'top': 'top', 'proj': 'projection head'}
    present = [place for place in range(len(pieces)) if np.isfinite(distance[:, place]).any()]
    piece_looks = looks.of([*names, *map(str, pieces)])
    for place in present:
        name = str(pieces[place])
        left.plot(rounds, distance[:, place], label=names.get(name, name), **piece_looks[name].line(len(rounds), place))
    left.set_ylabel('Distance / norm of the student')
    left.set_ylim(bottom=0)
    legends.below(left.figure)
    right.plot(rounds, 100.0 * np.asarray(agreement), color=style.BLACK, marker='o', markevery=max(1, len(rounds) // 8))
    right.set_ylabel('Equal predictions (%)')
    for ax in axes:
        ax.set_xlabel('Round')
    return axes


def _middles(rounds: Sequence[int]) -> np.ndarray:
    at = np.asarray(rounds, float)
    return (at[1:] + at[:-1]) / 2.0


def _half(rounds: Sequence[int], end: int) -> float:
    """Half the distance from the first or the last round to its neighbor."""
    return abs(float(np.diff(rounds)[end])) / 2.0 if len(rounds) > 1 else 0.5
