"""Views made ahead: those of several steps at once, where that is faster.

On a CPU the views of a batch are made in its step, while its images are in the cache. On GPUs and TPUs, launching the
thirty or more small kernels of the views takes longer than computing them, so those of several steps are made together.
Every view has a key of its own, so they are the same bits.
"""

from __future__ import annotations

from semisfl_jax.core import machine
from semisfl_jax.core.types import Array

MOST_BYTES = 2**26  # of the views that are made at once; making them takes some twenty times as much memory


def most_steps(images: Array, views: int) -> int:
    """The number of steps whose views are computed together, at least 1.

    Args:
      images: [..., H, W, C] uint8, the images from which the views are made.
      views: number of views in one step.
    """
    if machine.platform() == 'cpu':
        return 1
    height, width, channels = images.shape[-3:]
    return max(MOST_BYTES // (views * height * width * channels), 1)
