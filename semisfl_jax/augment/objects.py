"""Flips of the targets of tasks of objects (`tasks.parts_of`), a batch at a time: boxes, masks, joints."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array
from semisfl_jax.models.detection import boxes
from semisfl_jax.tasks.keypoint_similarity import SKELETONS

# Bytes with their bits in reverse
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)[:, ::-1], axis=1)[:, 0]


def flip(parts: Mapping[str, Array], flipped: Array, width: int) -> dict[str, Array]:
    """Flips the targets of some images from left to right; left and right joints change places.

    What pads the objects of an image is flipped, too, and has no meaning.

    Args:
      parts: {part: [B, ...]}.
      flipped: [B] bool, which images are flipped.
      width: W of the images.
    """

    def one(name: str, x: Array) -> Array:
        return jnp.where(flipped.reshape(-1, *[1] * (x.ndim - 1)), _FLIPS[name](x, width), x) if name in _FLIPS else x

    return {name: one(name, x) for name, x in parts.items()}


def _swapped(x: Array, axis: int) -> Array:
    """Exchanges left and right joints, which lie along an axis."""
    return jnp.take(x, np.array(SKELETONS[x.shape[axis]].mirrored), axis=axis)


# What is not listed has no sides
_FLIPS: dict[str, Callable[[Array, int], Array]] = {
    'boxes': boxes.flip,
    'masks': lambda masks, _: jnp.asarray(_REVERSED)[masks[..., ::-1]],
    'semantic': lambda classes, _: classes[..., ::-1],
    'joints': lambda joints, width: _swapped(jnp.array([width - 1, 0]) + jnp.array([-1, 1]) * joints, -2),
    'visible': lambda visible, _: _swapped(visible, -1),
    'known': lambda known, _: known[..., ::-1],
}
