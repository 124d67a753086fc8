"""How clients help each other label (FedMatch): nearest models, agreement labels, divergence.

A client gets the models of H helpers. If fewer are known, the remaining rows of H are invalid and ignored.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array

_MEAN, _DEVIATION, _HIGHEST = 125.0, 125.0, 255.0


def noise(key: Array, shape: tuple[int, ...]) -> Array:
    """The image on which models are compared: uint8 pixels from a Gaussian (mean 125, sd 125) truncated to 0 .. 255."""
    low, high = -_MEAN / _DEVIATION, (_HIGHEST - _MEAN) / _DEVIATION
    pixels = _MEAN + _DEVIATION * jax.random.truncated_normal(key, low, high, shape)
    return jnp.round(pixels).astype(jnp.uint8)


def nearest(embeddings: Array, known: Array, client: Array, count: int) -> tuple[Array, Array]:
    """The helpers of a client: the `count` other known clients whose embeddings are nearest by Euclidean distance.

    Ties go to the lowest client number. The authors use a KD-tree for the same search.

    Args:
      embeddings: [N, K]; rows of unknown clients are ignored.
      known: [N] bool, whether a client has reported before.
      client: [] int32, the client that needs helpers; one that is not known itself gets none.
      count: H, at most N.

    Returns:
      ids [H] int32, nearest first, and valid [H] bool: False where no known client is left.
    """
    distance = jnp.sum((embeddings - embeddings[client]) ** 2, axis=-1)
    others = known & (jnp.arange(known.shape[0]) != client)
    near, ids = jax.lax.top_k(-jnp.where(others, distance, jnp.inf), count)
    return ids.astype(jnp.int32), jnp.isfinite(near) & known[client]


def label(predicted: Array, votes: Array, valid: Array, classes: int) -> Array:
    """Agreement labels: the class with the most votes from the client and its helpers; ties go to the lowest class.

    Args:
      predicted: [B] int32, the client's classes.
      votes: [H, B] int32, the helpers' predicted classes.
      valid: [H] bool, the helpers that vote; without any, the label is the client's own class.
      classes: K.

    Returns:
      [B] int32.
    """
    counts = jax.nn.one_hot(predicted, classes) + jnp.tensordot(
        valid.astype(jnp.float32), jax.nn.one_hot(votes, classes), 1
    )
    return jnp.argmax(counts, axis=-1).astype(jnp.int32)


def divergence(helpers: Array, logits: Array, valid: Array) -> Array:
    """Inter-client consistency of every row: the mean of KL(p_h || p) over the valid helpers, 0 if there are none.

    Args:
      helpers: [H, B, K], logits of the helpers; no gradient flows through them.
      logits: [B, K], of the client.
      valid: [H] bool.

    Returns:
      [B], in nats.
    """
    target = jax.lax.stop_gradient(jax.nn.log_softmax(helpers))
    rows = jnp.sum(jnp.exp(target) * (target - jax.nn.log_softmax(logits)), axis=-1)  # [H, B]
    return jnp.sum(rows * valid[:, None], axis=0) / jnp.maximum(jnp.sum(valid), 1)
