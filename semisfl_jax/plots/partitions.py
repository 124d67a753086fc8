"""The number of images of each class that each client holds (Fig. 7 of the paper)."""

from __future__ import annotations

import numpy as np

from semisfl_jax.core.types import Axes
from semisfl_jax.plots import style

MOST_BUBBLES = (50, 30)  # clients, classes; beyond that, a heat map is drawn


def partition(ax: Axes, counts: np.ndarray, client_name: str = 'Client', title: str = '') -> Axes:
    """Images of every client and class: bubbles with area proportional to the number, or a heat map if many.

    Args:
      ax: Axes.
      counts: [N, K] images.
      client_name: label of the x axis.
      title: what the images are, if there are others.

    Returns:
      ax.
    """
    clients, classes = counts.shape
    ax.set_xlabel(client_name)
    ax.set_ylabel('Class')
    ax.set_title(title, loc='left')
    if clients > MOST_BUBBLES[0] or classes > MOST_BUBBLES[1]:
        shades = ax.imshow(counts.T, origin='lower', aspect='auto', cmap=style.SEQUENTIAL, interpolation='nearest')
        ax.grid(visible=False)
        ax.figure.colorbar(shades, ax=ax, label='Images')
        return ax
    client, label = np.nonzero(counts)
    most = int(counts.max())
    area = _largest_area(ax, clients, classes) * counts[client, label] / max(most, 1)
    ax.scatter(client, label, s=area, color=style.BLUE, alpha=0.85, linewidths=0)
    ax.set_title(f'largest bubble: {most:,} images' if most else 'of unknown classes', loc='right', fontsize='small')
    ax.set_xlim(-0.6, clients - 0.4)
    ax.set_ylim(-0.6, classes - 0.4)
    ax.set_xticks(range(0, clients, 1 if clients <= 15 else 5))
    ax.set_yticks(range(classes))
    return ax


def _largest_area(ax: Axes, clients: int, classes: int) -> float:
    """Area in square points of a bubble that roughly fills a cell, if Axes take up four fifths of the figure."""
    width, height = 0.8 * 72.0 * ax.figure.get_size_inches()
    grid = ax.get_subplotspec().get_gridspec()
    sides = width / grid.ncols / clients, height / grid.nrows / classes
    diameter = min(np.sqrt(sides[0] * sides[1]), 1.1 * min(sides))
    return np.pi / 4.0 * diameter**2
