"""Losses of dense tasks: means over the pixels that have a truth, 0 if there are none.

Outputs are [B, H, W, outputs] and targets [B, H, W] uint8, IGNORED where there is no truth. What is not stated by the
papers follows the single-task settings of ASTMT and of Vandenhende's multi-task code.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array
from semisfl_jax.tasks.task import IGNORED

DEPTH_STEPS = 254  # a target of depth is a number in [0, 1] times this
EDGE_WEIGHT = 0.95  # of pixels on an edge, which are few; the others weigh the rest to 1
POINT_WEIGHT = 0.95  # likewise of the heat maps of keypoints
SIGMA = 1.5  # pixels, of the Gaussian around a keypoint
_REACH = math.ceil(3 * SIGMA)  # rows and columns beyond which it is 0, where it would be below 0.0004


def cross_entropy(outputs: Array, targets: Array) -> Array:
    """Softmax cross-entropy of logits [B, H, W, K] against classes."""
    hot = jax.nn.one_hot(targets, outputs.shape[-1], dtype=outputs.dtype)
    return _mean(-jnp.sum(hot * jax.nn.log_softmax(outputs), axis=-1), targets != IGNORED)


def balanced_bce(outputs: Array, targets: Array) -> Array:
    """Class-balanced binary cross-entropy of logits [B, H, W, 1] against 0 or 1, for saliency.

    As in HED and ASTMT, a positive pixel weighs the share of negative ones and a negative pixel the share of positive
    ones. The shares are those of the whole batch, as in Vandenhende's code; a batch with one kind alone has loss 0.
    """
    known, positive = targets != IGNORED, targets == 1
    share = _mean(positive.astype(outputs.dtype), known)
    return _mean(_weighted(outputs[..., 0], positive.astype(outputs.dtype), 1 - share), known)


def weighted_bce(outputs: Array, targets: Array) -> Array:
    """Binary cross-entropy of logits [B, H, W, 1] against 0 or 1, for edges.

    A positive pixel has the weight EDGE_WEIGHT, a negative one the rest to 1.
    """
    positive = (targets == 1).astype(outputs.dtype)
    return _mean(_weighted(outputs[..., 0], positive, EDGE_WEIGHT), targets != IGNORED)


def l1(outputs: Array, targets: Array) -> Array:
    """Absolute error of depth [B, H, W, 1]."""
    return _mean(jnp.abs(outputs[..., 0] - targets / jnp.float32(DEPTH_STEPS)), targets != IGNORED)


def keypoints(outputs: Array, targets: Array) -> Array:
    """Weighted binary cross-entropy of logits [B, H, W, K] against the heat maps of the points, mean over the types."""
    rows = _weighted(outputs, heat_maps(targets, outputs.shape[-1]), POINT_WEIGHT)
    return _mean(jnp.mean(rows, axis=-1), targets != IGNORED)


def heat_maps(targets: Array, types: int) -> Array:
    """A Gaussian around every keypoint, the maximum over the points of a type: [B, H, W] uint8 -> [B, H, W, types].

    exp(-d^2 / 2 sigma^2) is a product over rows and columns, so the maximum is taken along one after the other.
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
    """Binary cross-entropy where the positive part has `weight` and the negative part the rest to 1."""
    positive, negative = jax.nn.softplus(-logits), jax.nn.softplus(logits)
    return weight * truth * positive + (1 - weight) * (1 - truth) * negative


def _mean(values: Array, known: Array) -> Array:
    """Mean of [B, H, W] over known pixels; 0 if there are none."""
    count = jnp.sum(known, dtype=jnp.int32)
    return jnp.sum(jnp.where(known, values, 0)) / jnp.maximum(count, 1).astype(values.dtype)
