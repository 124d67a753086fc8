"""Pytrees with a leading client axis: replicate, average, mix."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from semisfl_jax.types import Array


def replicate(tree, count: int):
    """Gives every leaf [...] a leading axis [count, ...] of copies."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def weighted_mean(tree, weight: Array, otherwise, total: Callable = lambda sums: sums):
    """Averages the leading axis of every leaf: [A, ...] -> [...], with weights [A] that need not sum to one.

    BatchNorm statistics are leaves like any other, so they are averaged too. When all weights are 0, the result is
    `otherwise`, a tree of leaves [...]. `total` is that of a `Layout`, when `tree` has only some of the clients.
    """
    whole = total(jnp.sum(weight))
    share = weight / jnp.where(whole > 0, whole, 1.0)
    means = total(jax.tree.map(lambda x: jnp.tensordot(share.astype(x.dtype), x, axes=1), tree))
    return jax.tree.map(lambda mean, fallback: jnp.where(whole > 0, mean, fallback), means, otherwise)


def mix(old, new, keep: Array | float):
    """`keep` * old + (1 - `keep`) * new, leaf by leaf."""
    return jax.tree.map(lambda a, b: keep * a + (1.0 - keep) * b, old, new)
