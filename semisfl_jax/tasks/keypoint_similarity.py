"""Object keypoint similarity, by which COCO scores the joints of people as overlap scores boxes."""

import numpy as np


def similarity(joints: np.ndarray, truth: np.ndarray, visible: np.ndarray, area: float, spreads: np.ndarray) -> float:
    """Computes the mean over labeled joints of exp(-d^2 / (2 * area * k^2)), k twice a joint's spread, as pycocotools.

    Args:
      joints: [J, 2], predicted.
      truth: [J, 2].
      visible: [J] bool, which joints are labeled.
      area: of the person, in pixels.
      spreads: [J], how much people who annotate differ, relative to the square root of the area.

    Returns:
      A number in [0, 1]; nan without labeled joints.
    """
    if not visible.any():
        return float('nan')
    squares = np.sum((joints - truth) ** 2, axis=1) / (2 * spreads) ** 2 / (area + np.spacing(1)) / 2
    return float(np.mean(np.exp(-squares[visible])))
