"""How clients help each other to label (FedMatch): whose models are alike, on which class they agree, how far apart.

A client gets the models of H helpers. Where fewer are known, the rest of the H rows is there but does not count.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from semisfl_jax.types import Array

_MEAN, _DEVIATION, _HIGHEST = 125.0, 125.0, 255.0


def noise(key: Array, shape: tuple[int, ...]) -> Array:
    """The image that models are compared on: pixels uint8 of a Gaussian (mean 125, sd 125) truncated to 0 .. 255."""
    low, high = -_MEAN / _DEVIATION, (_HIGHEST - _MEAN) / _DEVIATION
    pixels = _MEAN + _DEVIATION * jax.random.truncated_normal(key, low, high, shape)
    return jnp.round(pixels).astype(jnp.uint8)


def nearest(embeddings: Array, known: Array, client: Array, count: int) -> tuple[Array, Array]:
    """The helpers of a client: the `count` other known clients whose embeddings are nearest by Euclidean distance.

    Among equally near ones those of the lowest number. The authors search the same in a KD-tree.

    Args:
      embeddings: [N, K], rows of unknown clients are not looked at.
      known: [N] bool, whether a client has reported before.
      client: [] int32, whose helpers; a client that is not known itself gets none.
      count: H, at most N.

    Returns:
      ids [H] int32, nearest first, and valid [H] bool: False where no known client is left.
    """
    distance = jnp.sum((embeddings - embeddings[client]) ** 2, axis=-1)
    others = known & (jnp.arange(known.shape[0]) != client)
    near, ids = jax.lax.top_k(-jnp.where(others, distance, jnp.inf), count)
    return ids.astype(jnp.int32), jnp.isfinite(near) & known[client]


def label(own: Array, votes: Array, valid: Array, classes: int) -> Array:
    """Agreement labels: the class with most votes of the client and its helpers, the lowest of equals.

    Args:
      own: [B] int32, the client's classes.
      votes: [H, B] int32, those of the helpers.
      valid: [H] bool, whose votes count; without any the label is the client's own class.
      classes: K.

    Returns:
      [B] int32.
    """
    counts = jax.nn.one_hot(own, classes) + jnp.tensordot(valid.astype(jnp.float32), jax.nn.one_hot(votes, classes), 1)
    return jnp.argmax(counts, axis=-1).astype(jnp.int32)


def divergence(helpers: Array, own: Array, valid: Array) -> Array:
    """Inter-client consistency of every row: the mean of KL(p_h || p) over the valid helpers, 0 without one.

    Args:
      helpers: [H, B, K], logits of the helpers; nothing is differentiated through them.
      own: [B, K], logits of the client.
      valid: [H] bool.

    Returns:
      [B], in nats.
    """
    target = jax.lax.stop_gradient(jax.nn.log_softmax(helpers))
    rows = jnp.sum(jnp.exp(target) * (target - jax.nn.log_softmax(own)), axis=-1)  # [H, B]
    return jnp.sum(rows * valid[:, None], axis=0) / jnp.maximum(jnp.sum(valid), 1)
