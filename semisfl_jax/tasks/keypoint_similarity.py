"""Object keypoint similarity, by which COCO scores the joints of people as overlap scores boxes."""

from typing import NamedTuple

import numpy as np


class Skeleton(NamedTuple):
    """The joints of people in a data set."""

    mirrored: tuple[int, ...]  # [J], the joint that each is in a mirror: left and right change places
    spreads: tuple[float, ...]  # [J], how much people who annotate differ, relative to the square root of the area
    order: tuple[int, ...]  # [J], in which joints are grouped to people: those that are found best come first


# By number of joints. COCO's: nose, then left and right eyes, ears, shoulders, elbows, wrists, hips, knees and ankles,
# with pycocotools' spreads. Scenes': the highest, lowest, leftmost, rightmost and central point of a digit
SKELETONS = {
    17: Skeleton(
        (0, *(joint + side for joint in range(1, 17, 2) for side in (1, 0))),
        (0.026, *np.repeat((0.025, 0.035, 0.079, 0.072, 0.062, 0.107, 0.087, 0.089), 2).tolist()),
        (*range(7), 11, 12, 7, 8, 13, 14, 9, 10, 15, 16),  # as in the code of associative embedding
    ),
    5: Skeleton((0, 1, 3, 2, 4), (0.1,) * 5, (4, 0, 1, 2, 3)),
}


def similarity(joints: np.ndarray, truth: np.ndarray, visible: np.ndarray, area: float, spreads: np.ndarray) -> float:
    """Computes the mean over labeled joints of exp(-d^2 / (2 * area * k^2)), k twice a joint's spread, as pycocotools.

    Args:
      joints: [J, 2], predicted.
      truth: [J, 2].
      visible: [J] bool, which joints are labeled.
      area: of the person, in pixels.
      spreads: [J], of `Skeleton`.

    Returns:
      A number in [0, 1]; nan without labeled joints.
    """
    if not visible.any():
        return float('nan')
    squares = np.sum((joints - truth) ** 2, axis=1) / (2 * spreads) ** 2 / (area + np.spacing(1)) / 2
    return float(np.mean(np.exp(-squares[visible])))
