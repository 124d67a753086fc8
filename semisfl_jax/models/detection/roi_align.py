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

    Args:
      maps: [h, w, C] for each level.
      strides: pixels of the image per element of each map.
      boxes: [N, 4] in pixels.
      levels: [N], index of the map that each box is read from.
      size: S, bins along each side.

    Returns:
      [N, S, S, C].
    """
    heights, widths = (jnp.array([x.shape[axis] for x in maps]) for axis in (0, 1))
    starts = jnp.cumsum(jnp.array([0, *(x.shape[0] * x.shape[1] for x in maps[:-1])]))
    flat = jnp.concatenate([x.reshape(-1, x.shape[-1]) for x in maps])
    count = size * SAMPLES

    def one(box: Array, level: Array) -> Array:
        scaled = box / jnp.array(strides, box.dtype)[level]
        extent = jnp.maximum(scaled[2:] - scaled[:2], 1)  # of a box below an element of the map
        at = (jnp.arange(count) + 0.5) / count
        rows = _neighbors(scaled[1] + at * extent[1], heights[level])
        columns = _neighbors(scaled[0] + at * extent[0], widths[level])
        total = jnp.zeros((count, count, flat.shape[1]), flat.dtype)
        for y, of_row in rows:
            for x, of_column in columns:
                index = starts[level] + y[:, None] * widths[level] + x[None]
                total += flat[index] * (of_row[:, None] * of_column[None])[..., None].astype(flat.dtype)
        return total.reshape(size, SAMPLES, size, SAMPLES, -1).mean(axis=(1, 3))

    return jax.vmap(one)(boxes, levels)


def _neighbors(at: Array, length: Array) -> list[tuple[Array, Array]]:
    """Returns the two elements beside each place on an axis and their weights, 0 outside of the map."""
    inside = (at >= -1) & (at <= length)
    at = jnp.clip(at, 0, length - 1)
    low = jnp.floor(at).astype(jnp.int32)
    part = at - low
    return [(low, (1 - part) * inside), (jnp.minimum(low + 1, length - 1), part * inside)]


def crop(masks: Array, index: Array, boxes: Array, size: int) -> Array:
    """Samples masks within boxes: RoIAlign with as many samples in a bin as it has pixels, rounded up, as torchvision.

    Samples of a bin form a grid, so each box takes two matrix products, one for rows and one for columns.

    Args:
      masks: [G, H, W].
      index: [N], the mask of each box.
      boxes: [N, 4], within the image.
      size: S, bins along each side.

    Returns:
      [N, S, S] in [0, 1].
    """

    def weights(low: Array, high: Array, length: int) -> Array:
        extent = jnp.maximum(high - low, 1)
        count = jnp.ceil(extent / size)  # of samples in a bin
        sample = jnp.arange(-(-length // size))
        at = low + (jnp.arange(size)[:, None] + (sample + 0.5) / count) * extent / size  # [S, samples]
        near = jnp.clip(at, 0, length - 1)[..., None] - jnp.arange(length)
        return jnp.sum(jnp.maximum(1 - jnp.abs(near), 0) * (sample < count)[:, None], axis=1) / count  # [S, length]

    def one(of_box: tuple[Array, Array]) -> Array:
        i, box = of_box
        rows, columns = weights(box[1], box[3], masks.shape[1]), weights(box[0], box[2], masks.shape[2])
        return rows @ jnp.asarray(masks)[i].astype(box.dtype) @ columns.T

    return jax.lax.map(one, (index, boxes), batch_size=AT_ONCE)
