"""2 x 2 max-pooling, alone or with bias and ReLU, with a cheap gradient: no search, and one byte stored per window."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import Array

_CODES = np.arange(4, 0, -1, dtype=np.uint8)[:, None]  # of the corners; 0: ReLU stopped the maximum


def max_pool(x: Array, pad: bool = False) -> Array:
    """Pools x by 2 x 2 windows with stride 2.

    As in PyTorch, a trailing row or column that does not fill a window is dropped, and the first of equal values gets
    the gradient.

    Args:
      x: [B, H, W, C].
      pad: first adds a border of -inf.

    Returns:
      [B, H // 2, W // 2, C], with `pad` [B, H // 2 + 1, W // 2 + 1, C].
    """
    return max_of_corners(windows(x, pad))


def windows(x: Array, pad: bool = False) -> Array:
    """Returns the four corners of every window of `max_pool`.

    Args:
      x: [B, H, W, C].
      pad: first adds a border of -inf.

    Returns:
      [B, H // 2, W // 2, 4, C], with `pad` [B, H // 2 + 1, W // 2 + 1, 4, C].
    """
    if pad:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    x = x.reshape(batch, height // 2, 2, width // 2, 2, channels).swapaxes(2, 3)
    return x.reshape(batch, height // 2, width // 2, 4, channels)


@jax.custom_vjp
def max_of_corners(corners: Array) -> Array:
    """Maps [..., 4, C] to [..., C]; for the gradient it stores the maximum's index, one byte, not the four values."""
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


@jax.custom_vjp
def activated_max_of_corners(corners: Array, bias: Array) -> Array:
    """Computes ReLU(`max_of_corners` + bias).

    For CPU. XLA fuses everything it can and recomputes a fusion for each of its readers: the maximum for the next
    layer, for its gradient, for the mask and for the gradient of the bias. It does not fuse `reduce_window`.

    Args:
      corners: [..., 4, C].
      bias: [C].

    Returns:
      [..., C]. The byte stored for the gradient also says where ReLU stopped the maximum.
    """
    return jax.nn.relu(max_of_corners(corners) + bias)  # without a gradient, only the next layer reads it


def _activated_forward(corners: Array, bias: Array) -> tuple[Array, Array]:
    largest = _largest(corners)
    activated = jax.nn.relu(largest + bias)
    alive = (corners == largest[..., None, :]) & (activated > 0)[..., None, :]
    first = _window_max(jnp.where(alive, _CODES, jnp.uint8(0)))
    return activated, first


def _activated_backward(stored: Array, gradient: Array) -> tuple[Array, Array]:
    alive = jnp.where(stored > 0, gradient, jnp.zeros((), gradient.dtype))
    corner_gradient = jnp.where(stored[..., None, :] == _CODES, alive[..., None, :], 0)
    image = (1, *alive.shape[1:-1], 1)
    bias_gradient = jax.lax.reduce_window(alive, np.zeros((), alive.dtype), jax.lax.add, image, image, 'VALID')
    return corner_gradient, jnp.sum(bias_gradient, range(alive.ndim - 1))


activated_max_of_corners.defvjp(_activated_forward, _activated_backward)


@jax.custom_vjp
def _largest(corners: Array) -> Array:
    """Computes `max_of_corners` by an operation that XLA does not fuse."""
    return _window_max(corners)


_largest.defvjp(lambda corners: (_window_max(corners), _corners_forward(corners)[1]), _corners_backward)


def _window_max(corners: Array) -> Array:
    """Maps [..., 4, C] to [..., C]."""
    window = (*(1,) * (corners.ndim - 2), 4, 1)
    least = np.array(-np.inf if jnp.issubdtype(corners.dtype, jnp.floating) else 0, corners.dtype)
    return jax.lax.reduce_window(corners, least, jax.lax.max, window, window, 'VALID')[..., 0, :]
