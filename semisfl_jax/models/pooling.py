"""2 x 2 max-pooling, alone or with bias and ReLU, with a cheap gradient: no search, and one byte stored per window."""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp

from semisfl_jax.types import Array

_DEAD = 4  # instead of the index of a corner: ReLU stopped the maximum, and no corner gets a gradient


def max_pool(x: Array, pad: bool = False) -> Array:
    """2 x 2 max-pooling with stride 2: [B, H, W, C] -> [B, H // 2, W // 2, C].

    With `pad`, a border of -inf is added first, so H becomes H // 2 + 1. A trailing row or column that does not fill a
    window is dropped, and the first of equal values gets the gradient, both as in PyTorch.
    """
    return max_of_corners(windows(x, pad))


def windows(x: Array, pad: bool = False) -> Array:
    """The four corners of every window of `max_pool`: [B, H, W, C] -> [B, H // 2, W // 2, 4, C]."""
    if pad:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).swapaxes(2, 3)
    return x.reshape(batch, height // 2, width // 2, 4, channels)


@jax.custom_vjp
def max_of_corners(corners: Array) -> Array:
    """[..., 4, C] -> [..., C]. For the gradient it stores the index of the maximum, one byte, not the four values."""
    return _corners_forward(corners)[0]


def _corners_forward(corners: Array) -> tuple[Array, Array]:
    largest = _largest(corners)
    return largest, _winner(corners, largest)


def _corners_backward(winner: Array, gradient: Array) -> tuple[Array]:
    return (_to_winner(winner, gradient),)


max_of_corners.defvjp(_corners_forward, _corners_backward)


@jax.custom_vjp
def activated_max_of_corners(corners: Array, bias: Array) -> Array:
    """ReLU(`max_of_corners` + bias [C]), [..., 4, C] -> [..., C]. The stored byte also says where ReLU stopped it."""
    return jax.nn.relu(_largest(corners) + bias)


def _activated_forward(corners: Array, bias: Array) -> tuple[Array, Array]:
    largest = _largest(corners)
    activated = jax.nn.relu(largest + bias)
    return activated, jnp.where(activated > 0, _winner(corners, largest), jnp.uint8(_DEAD))


def _activated_backward(stored: Array, gradient: Array) -> tuple[Array, Array]:
    gradient = jnp.where(stored < _DEAD, gradient, jnp.zeros((), gradient.dtype))
    return _to_winner(stored, gradient), jnp.sum(gradient, range(gradient.ndim - 1))


activated_max_of_corners.defvjp(_activated_forward, _activated_backward)


def _each(corners: Array) -> list[Array]:
    return [corners[..., index, :] for index in range(4)]


def _largest(corners: Array) -> Array:
    return reduce(jnp.maximum, _each(corners))


def _winner(corners: Array, largest: Array) -> Array:
    """The index of the first corner that is the largest, of type uint8; 3 where none is (NaN)."""
    each = _each(corners)
    winner = jnp.full(largest.shape, 3, jnp.uint8)
    for index in (2, 1, 0):
        winner = jnp.where(each[index] == largest, jnp.uint8(index), winner)
    return winner


def _to_winner(winner: Array, gradient: Array) -> Array:
    """[..., C] -> [..., 4, C], zero everywhere but at the winner."""
    corner = jnp.arange(4, dtype=jnp.uint8)[:, None]
    return jnp.where(winner[..., None, :] == corner, gradient[..., None, :], 0)
