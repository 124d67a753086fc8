"""The feature space in two dimensions: t-SNE of the bottom's features of test images."""

from __future__ import annotations

import numpy as np

from semisfl_jax.core.types import Axes
from semisfl_jax.plots import style

MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X', '<', '>', '*')


def tsne(features: np.ndarray, seed: int = 0) -> np.ndarray:
    """[n, D] -> [n, 2] by scikit-learn's t-SNE, initialized with the first two principal components; deterministic.

    The perplexity is 30, or a third of the number of points if there are few.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(features) - 1) / 3.0)
    features = np.asarray(features, np.float32)
    with threadpool_limits(1):  # fixes the order of sums; threads would not pay off for a thousand points
        return TSNE(perplexity=perplexity, init='pca', random_state=seed, n_jobs=1).fit_transform(features)


def feature_space(ax: Axes, points: np.ndarray, labels: np.ndarray, title: str = '') -> Axes:
    """Points in the plane by true class: each class has a color and a marker, and its number at its median.

    Args:
      ax: Axes.
      points: [n, 2].
      labels: [n], 0 .. K - 1.
      title: of the panel.
    """
    for label in np.unique(labels):
        class_points = points[labels == label]
        look = {
            'color': style.PALETTE[label % len(style.PALETTE)],
            'marker': MARKERS[label % len(MARKERS)],
        }
        ax.scatter(class_points[:, 0], class_points[:, 1], s=7, linewidths=0, alpha=0.75, label=str(label), **look)
        box = {'boxstyle': 'round,pad=0.15', 'facecolor': 'white', 'edgecolor': look['color'], 'linewidth': 0.8}
        x, y = np.median(class_points, axis=0)
        ax.text(x, y, str(label), ha='center', va='center', fontsize='small', bbox=box)
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_visible(True)
    ax.set_title(title)
    return ax
