"""Losses of Mask R-CNN on samples: sums over an image and what divides them, so that a batch has one mean.

The normalizers are torchvision's: all samples of the batch, also for boxes, which only positive samples have.
"""

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.core.types import Array

BETA = 1 / 9  # where the smooth absolute error turns from a square into a line
Part = tuple[Array, Array]  # a sum and its divisor, [] each


def smooth_l1(error: Array) -> Array:
    """Computes the smooth absolute error, element by element (Girshick, 2015)."""
    size = jnp.abs(error)
    return jnp.where(size < BETA, size**2 / (2 * BETA), size - BETA / 2)


def anchor_losses(logits: Array, offsets: Array, targets: Array, positive: Array, there: Array) -> dict[str, Part]:
    """Computes the losses of the region proposal network.

    Args:
      logits: [K], whether there is an object.
      offsets: [K, 4], predicted.
      targets: [K, 4], true, of positive samples.
      positive: [K] bool.
      there: [K] bool, which samples there are.
    """
    found = optax.sigmoid_binary_cross_entropy(logits, positive.astype(logits.dtype))
    boxes = smooth_l1(jnp.where(positive[:, None], offsets - targets, 0))
    count = there.sum()
    return {'objectness': (jnp.sum(found * there), count), 'anchors': (jnp.sum(boxes), count)}


def box_losses(logits: Array, offsets: Array, targets: Array, labels: Array, there: Array) -> dict[str, Part]:
    """Computes the losses of the box head.

    Args:
      logits: [K, C + 1] of classes.
      offsets: [K, C + 1, 4], predicted for each class.
      targets: [K, 4], true, of positive samples.
      labels: [K] classes, 0 for background.
      there: [K] bool, which samples there are.
    """
    classes = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    own = offsets[jnp.arange(len(labels)), labels]
    boxes = smooth_l1(jnp.where((there & (labels > 0))[:, None], own - targets, 0))
    count = there.sum()
    return {'classes': (jnp.sum(classes * there), count), 'boxes': (jnp.sum(boxes), count)}


def mask_losses(logits: Array, targets: Array, labels: Array) -> dict[str, Part]:
    """Computes the loss of the mask head, on the mask of the true class alone.

    Args:
      logits: [K, S, S, C + 1].
      targets: [K, S, S] in [0, 1].
      labels: [K] classes, 0 for samples without a mask.
    """
    own = jnp.take_along_axis(logits, labels[:, None, None, None], axis=-1)[..., 0]
    pixels = optax.sigmoid_binary_cross_entropy(own, targets).mean(axis=(1, 2))
    return {'masks': (jnp.sum(pixels * (labels > 0)), jnp.sum(labels > 0))}


def means(parts: dict[str, Part]) -> dict[str, Array]:
    """Averages parts of images, [B] each, over the batch; 0 without samples."""
    return jax.tree.map(
        lambda part: part[0].sum() / jnp.maximum(part[1].sum(), 1), parts, is_leaf=lambda x: isinstance(x, tuple)
    )
