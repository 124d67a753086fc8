"""Predictions resized to the size of the truth they are scored with, where that is not the size of the network.

Images of a batch have `sizes` [B, 2] of their own, height and width. Each fills the upper left corner of a map of
`shape` (H, W); what is beyond has no meaning. Without `sizes` nothing is resized.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array


def nearest(maps: Array, shape: tuple[int, ...], sizes: Array | None) -> Array:
    """Maps [B, h, w, ...] -> [B, H, W, ...], each pixel of which takes the value under its center."""

    def one(values: Array, size: Array) -> Array:
        rows, columns = (
            jnp.minimum((2 * jnp.arange(shape[k]) + 1) * values.shape[k] // (2 * size[k]), values.shape[k] - 1)
            for k in (0, 1)
        )
        return values[rows[:, None], columns]

    return maps if sizes is None else jax.vmap(one)(maps, sizes)


def bilinear(maps: Array, shape: tuple[int, ...], sizes: Array | None) -> Array:
    """Maps [B, h, w, ...] -> [B, H, W, ...]: half-pixel centers, no smoothing, as in PyTorch and OpenCV."""

    def one(values: Array, size: Array) -> Array:
        for k in (0, 1):
            last = values.shape[k] - 1
            places = jnp.clip((jnp.arange(shape[k]) + 0.5) * values.shape[k] / size[k] - 0.5, 0, last)
            before = jnp.floor(places).astype(jnp.int32)
            share = (places - before).reshape(-1, *[1] * (values.ndim - 1 - k))
            after = jnp.minimum(before + 1, last)
            values = (1 - share) * jnp.take(values, before, axis=k) + share * jnp.take(values, after, axis=k)
        return values

    return maps if sizes is None else jax.vmap(one)(maps, sizes)
