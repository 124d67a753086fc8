"""Pytrees with a leading client axis: replicate, average, mix."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from semisfl_jax.types import Array


def replicate(tree, count: int):
    """Gives every leaf [...] a leading axis [count, ...] of copies."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def weighted_mean(tree, weight: Array, otherwise):
    """Averages the leading axis of every leaf: [A, ...] -> [...], with weights [A] that need not sum to one.

    BatchNorm statistics are leaves like any other, so they are averaged too. When all weights are 0, the result is
    `otherwise`, a tree of leaves [...].
    """
    total = jnp.sum(weight)
    share = weight / jnp.where(total > 0, total, 1.0)

    def mean(x, fallback):
        return jnp.where(total > 0, jnp.tensordot(share.astype(x.dtype), x, axes=1), fallback)

    return jax.tree.map(mean, tree, otherwise)


def mix(old, new, keep: Array | float):
    """`keep` * old + (1 - `keep`) * new, leaf by leaf."""
    return jax.tree.map(lambda a, b: keep * a + (1.0 - keep) * b, old, new)
