"""RoIAlign (He et al., 2017): features of boxes of any size on maps of several levels, as grids of one size."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array
from semisfl_jax.models.detection.boxes import area

SAMPLES = 2  # along each side of a bin
AT_ONCE = 16  # masks that are cropped together: bounds the memory for whole masks
CANONICAL_SIZE, CANONICAL_LEVEL = 224, 4  # a box of ImageNet's size is read from P4 (Lin et al., 2017, Eq. 1)


def levels_of(boxes: Array, lowest: int, highest: int) -> Array:
    """Returns the pyramid level [N] that each box [N, 4] is read from, by its size (Lin et al., 2017, Eq. 1)."""
    scale = jnp.sqrt(area(boxes)) / CANONICAL_SIZE
    return jnp.clip(jnp.floor(CANONICAL_LEVEL + jnp.log2(scale) + 1e-6), lowest, highest).astype(jnp.int32)


def roi_align(maps: Sequence[Array], strides: Sequence[float], boxes: Array, levels: Array, size: int) -> Array:
    """Samples the features of boxes bilinearly and averages 2 x 2 samples in each bin.

    Samples form a grid, so each level takes two products, one for rows and one for columns: their gradients are
    products, too, where those of gathered elements would be scattered.

    Args:
      maps: [h, w, C] for each level.
      strides: pixels of the image per element of each map.
      boxes: [N, 4] in pixels.
      levels: [N], index of the map that each box is read from.
      size: S, bins along each side.

    Returns:
      [N, S, S, C].
    """

    def weights(low: Array, high: Array, length: int) -> Array:
        extent = jnp.maximum(high - low, 1)  # of a box below an element of the map
        at = low[:, None] + (jnp.arange(size * SAMPLES) + 0.5) / (size * SAMPLES) * extent[:, None]
        return _weights(at, length).reshape(len(boxes), size, SAMPLES, length).mean(axis=2)

    total = jnp.zeros((), maps[0].dtype)
    for level, (x, stride) in enumerate(zip(maps, strides, strict=True)):
        left, top, right, bottom = (boxes / stride).T
        rows = weights(top, bottom, x.shape[0]) * (levels == level)[:, None, None]
        read = jnp.einsum('nsh,hwc->nswc', rows.astype(x.dtype), x)
        total += jnp.einsum('ntw,nswc->nstc', weights(left, right, x.shape[1]).astype(x.dtype), read)
    return total


def _weights(at: Array, length: int) -> Array:
    """Returns the bilinear weights [..., length] of the elements of an axis for places `at`, 0 outside of the map."""
    inside = (at >= -1) & (at <= length)
    near = jnp.clip(at, 0, length - 1)[..., None] - jnp.arange(length)
    return jnp.maximum(1 - jnp.abs(near), 0) * inside[..., None]


def crop(masks: Array, frames: Array, index: Array, boxes: Array, size: int) -> Array:
    """Samples masks within boxes: RoIAlign with as many samples in a bin as it has pixels, rounded up, as torchvision.

    There are no more samples than suffice for a bin of a box that has the whole mask. Samples of a bin form a grid, so
    each box takes two matrix products, as in `roi_align`.

    Args:
      masks: [G, H, W].
      frames: [G, 4], the part of the image that each mask covers, with zeros around it; [0, 0, W, H] for all of it.
      index: [N], the mask of each box.
      boxes: [N, 4], within the image.
      size: S, bins along each side.

    Returns:
      [N, S, S] in [0, 1].
    """

    def weights(low: Array, high: Array, start: Array, end: Array, length: int) -> Array:
        extent = jnp.maximum(high - low, 1)
        sample = jnp.arange(-(-length // size))
        count = jnp.minimum(jnp.ceil(extent / size), len(sample))  # of samples in a bin
        pixel = low + (jnp.arange(size)[:, None] + (sample + 0.5) / count) * extent / size  # [S, samples]
        at = (pixel + 0.5 - start) * length / jnp.maximum(end - start, 1e-6) - 0.5  # in elements of the mask
        return jnp.sum(_weights(at, length) * (sample < count)[..., None], axis=1) / count  # [S, length]

    def one(of_box: tuple[Array, Array]) -> Array:
        i, box = of_box
        frame = jnp.asarray(frames)[i]
        rows, columns = (weights(box[k], box[k + 2], frame[k], frame[k + 2], masks.shape[2 - k]) for k in (1, 0))
        return rows @ jnp.asarray(masks)[i].astype(box.dtype) @ columns.T

    return jax.lax.map(one, (index, boxes), batch_size=AT_ONCE)
