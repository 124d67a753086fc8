"""Targets of tasks of objects (`tasks.parts_of`): masks on grids over their boxes, and padding to a number of objects.

Test targets have further parts, the truth at the size of the picture, which only scorers read:

  truth: [m, L] uint8, the annotations of `tasks.truth`.
  segments: [m, H, W] uint8, in panoptic segmentation the number of each pixel's annotation, 0 for none. Scenes have it
    for instances, too, which overlap in no pixel there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from semisfl_jax.data.catalog import Known
from semisfl_jax.tasks import parts_of


def shapes(known: Known, side: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Returns shape and type of the parts of training targets, as in `Stream.parts`, for images of this side."""
    return {
        f'{task}.{part}': shape
        for task, most in known.objects.items()
        for part, shape in parts_of(task, known.outputs[task], side, *most).items()
    }


def on_grid(mask: np.ndarray, box: Sequence[float], grid: int) -> np.ndarray:
    """Samples a mask at the centers of a grid over its box.

    Args:
      mask: [H, W], 0 or 1.
      box: left, top, right and bottom edge in pixels of the mask.
      grid: E, a multiple of 8.

    Returns:
      [E, E // 8] uint8, bits packed along rows.
    """
    left, top, right, bottom = box
    step = (np.arange(grid) + 0.5) / grid
    rows, columns = (
        np.clip((low + step * (high - low)).astype(int), 0, length - 1)
        for low, high, length in ((top, bottom, mask.shape[0]), (left, right, mask.shape[1]))
    )
    return np.packbits(mask[rows[:, None], columns], axis=-1)


def padded(rows: Sequence[Any], count: int, shape: tuple[int, ...], kind: type) -> np.ndarray:
    """Stacks what at most `count` objects have, each of `shape`, [count, *shape], with zeros after them."""
    whole: np.ndarray = np.zeros((count, *shape), kind)
    if len(rows):
        whole[: len(rows)] = rows
    return whole
