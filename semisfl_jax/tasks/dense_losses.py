"""Losses of dense tasks: means over the pixels that have a truth, 0 if there are none.

Outputs are [B, H, W, outputs] and targets [B, H, W] uint8, IGNORED where there is no truth. Details that the papers
leave open follow the single-task settings of ASTMT and of Vandenhende's multi-task code.
"""

import math

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array
from semisfl_jax.tasks.task import IGNORED

DEPTH_STEPS = 254  # a depth target is a number in [0, 1] times this
EDGE_WEIGHT = 0.95  # of pixels on an edge, which are few; other pixels have 1 minus this
POINT_WEIGHT = 0.95  # likewise for the heat maps of keypoints
SIGMA = 1.5  # pixels, of the Gaussian around a keypoint
_REACH = math.ceil(3 * SIGMA)  # in rows and columns; the Gaussian is cut to 0 beyond, where it is below 0.0004


def cross_entropy(outputs: Array, targets: Array) -> Array:
    """Computes the softmax cross-entropy.

    Args:
      outputs: logits [B, H, W, K].
      targets: [B, H, W] classes.

    Returns:
      [].
    """
    hot = jax.nn.one_hot(targets, outputs.shape[-1], dtype=outputs.dtype)
    return _mean(-jnp.sum(hot * jax.nn.log_softmax(outputs), axis=-1), targets != IGNORED)


def balanced_bce(outputs: Array, targets: Array) -> Array:
    """Computes the class-balanced binary cross-entropy, for saliency.

    As in HED and ASTMT, a positive pixel is weighted by the share of negative ones and a negative pixel by the share of
    positive ones. The shares are those of the whole batch, as in Vandenhende's code; a batch with only one kind has
    loss 0.

    Args:
      outputs: logits [B, H, W, 1].
      targets: [B, H, W], 0 or 1.

    Returns:
      [].
    """
    known, positive = targets != IGNORED, targets == 1
    share = _mean(positive.astype(outputs.dtype), known)
    return _mean(_weighted(outputs[..., 0], positive.astype(outputs.dtype), 1 - share), known)


def weighted_bce(outputs: Array, targets: Array) -> Array:
    """Computes the weighted binary cross-entropy, for edges.

    A positive pixel has the weight EDGE_WEIGHT, a negative one 1 - EDGE_WEIGHT.

    Args:
      outputs: logits [B, H, W, 1].
      targets: [B, H, W], 0 or 1.

    Returns:
      [].
    """
    positive = (targets == 1).astype(outputs.dtype)
    return _mean(_weighted(outputs[..., 0], positive, EDGE_WEIGHT), targets != IGNORED)


def l1(outputs: Array, targets: Array) -> Array:
    """Computes the absolute error of depth.

    Args:
      outputs: [B, H, W, 1].
      targets: [B, H, W], in steps of 1 / DEPTH_STEPS.

    Returns:
      [].
    """
    return _mean(jnp.abs(outputs[..., 0] - targets / jnp.float32(DEPTH_STEPS)), targets != IGNORED)


def keypoints(outputs: Array, targets: Array) -> Array:
    """Computes the weighted binary cross-entropy against the heat maps of the points, averaged over the types.

    Args:
      outputs: logits [B, H, W, K].
      targets: [B, H, W], the type of the point from 1 on, else 0.

    Returns:
      [].
    """
    rows = _weighted(outputs, heat_maps(targets, outputs.shape[-1]), POINT_WEIGHT)
    return _mean(jnp.mean(rows, axis=-1), targets != IGNORED)


def heat_maps(targets: Array, types: int) -> Array:
    """Puts a Gaussian around every keypoint, and takes the maximum over the points of a type.

    exp(-d^2 / 2 sigma^2) is a product over rows and columns, so the maximum is taken along one after the other.

    Args:
      targets: [B, H, W] uint8, the type of the point from 1 on, else 0.
      types: number of types.

    Returns:
      [B, H, W, types] float32.
    """
    heat = (targets[..., None] == jnp.arange(1, types + 1)).astype(jnp.float32)
    for axis in (1, 2):
        pads = [(0, 0)] * heat.ndim
        pads[axis] = (_REACH, _REACH)
        wide, side = jnp.pad(heat, pads), heat.shape[axis]
        for offset in range(-_REACH, _REACH + 1):
            moved = jax.lax.slice_in_dim(wide, _REACH + offset, _REACH + offset + side, axis=axis)
            heat = jnp.maximum(heat, math.exp(-(offset**2) / (2 * SIGMA**2)) * moved)
    return heat


def _weighted(logits: Array, truth: Array, weight: float | Array) -> Array:
    """Computes the binary cross-entropy with `weight` on the positive part and 1 - weight on the negative part."""
    positive, negative = jax.nn.softplus(-logits), jax.nn.softplus(logits)
    return weight * truth * positive + (1 - weight) * (1 - truth) * negative


def _mean(values: Array, known: Array) -> Array:
    """Averages [B, H, W] over known pixels; 0 if there are none."""
    count = jnp.sum(known, dtype=jnp.int32)
    return jnp.sum(jnp.where(known, values, 0)) / jnp.maximum(count, 1).astype(values.dtype)
