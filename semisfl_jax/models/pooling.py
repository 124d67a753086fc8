"""2 x 2 max-pooling with a cheap gradient: no search, and one byte stored per window."""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp

from semisfl_jax.types import Array


def max_pool(x: Array, pad: bool = False) -> Array:
    """2 x 2 max-pooling with stride 2: [B, H, W, C] -> [B, H // 2, W // 2, C].

    With `pad`, a border of -inf is added first, so H becomes H // 2 + 1. A trailing row or column that does not fill a
    window is dropped, and the first of equal values gets the gradient, both as in PyTorch.
    """
    if pad:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    _, height, width, _ = x.shape
    return _pool(x[:, : height // 2 * 2, : width // 2 * 2])


def _pool(x: Array) -> Array:
    batch, height, width, channels = x.shape
    windows = x.reshape(batch, height // 2, 2, width // 2, 2, channels).swapaxes(2, 3)
    return max_of_corners(windows.reshape(batch, height // 2, width // 2, 4, channels))


@jax.custom_vjp
def max_of_corners(corners: Array) -> Array:
    """[..., 4, C] -> [..., C]. For the gradient it stores the index of the maximum, one byte, not the four values."""
    return _corners_forward(corners)[0]


def _corners_forward(corners: Array) -> tuple[Array, Array]:
    each = [corners[..., index, :] for index in range(4)]
    largest = reduce(jnp.maximum, each)
    winner = jnp.full(largest.shape, 3, jnp.uint8)
    for index in (2, 1, 0):
        winner = jnp.where(each[index] == largest, jnp.uint8(index), winner)
    return largest, winner


def _corners_backward(winner: Array, gradient: Array) -> tuple[Array]:
    corner = jnp.arange(4, dtype=jnp.uint8)[:, None]
    return (jnp.where(winner[..., None, :] == corner, gradient[..., None, :], 0),)


max_of_corners.defvjp(_corners_forward, _corners_backward)
