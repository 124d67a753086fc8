"""Test accuracy in one jitted call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.parallel import compilation
from semisfl_jax.types import Array


def make_evaluate(
    predict: Callable[[Any, Array], dict[str, Array]],
    like: Any,
    images: np.ndarray,
    labels: np.ndarray,
    batch_size: int,
    jit: Callable = compilation.jit,
    place: Callable[[np.ndarray], Array] = jax.device_put,
) -> Callable[[Any], dict[str, float]]:
    """Places the test set on the device and compiles the evaluation.

    Args:
      predict: (state, images [B, H, W, C] uint8) -> {model: logits [B, K]}.
      like: a state, or its shapes.
      images: [T, H, W, C] uint8. The last batch is padded with rows that are not counted.
      labels: [T].
      batch_size: B.
      jit: `compilation.jit`, possibly with settings applied.
      place: puts an array on the devices of the state.

    Returns:
      state -> {model: share of the T images whose largest logit is the label's}, computed from exact counts.
    """
    count = len(labels)
    batch_size = min(batch_size, count)
    batches = -(-count // batch_size)
    filled = np.arange(batches * batch_size) % count
    shape = (batches, batch_size)
    image_batches = place(images[filled].reshape(*shape, *images.shape[1:]))
    label_batches = place(labels[filled].astype(np.int32).reshape(shape))
    counts_batches = place((np.arange(len(filled)) < count).reshape(shape))

    def hits(state, image_batches, label_batches, counts_batches):
        def one(batch):
            batch_images, batch_labels, counts = batch
            correct = jax.tree.map(lambda x: jnp.argmax(x, axis=-1) == batch_labels, predict(state, batch_images))
            return jax.tree.map(lambda x: jnp.sum(x & counts, dtype=jnp.int32), correct)

        return jax.tree.map(jnp.sum, jax.lax.map(one, (image_batches, label_batches, counts_batches)))

    compiled = jit(hits).lower(like, image_batches, label_batches, counts_batches).compile()

    def evaluate(state: Any) -> dict[str, float]:
        correct_counts = jax.device_get(compiled(state, image_batches, label_batches, counts_batches))
        return {model: int(count_correct) / count for model, count_correct in correct_counts.items()}

    return evaluate
