"""Pytrees with a leading client axis: replicate, average, mix."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from semisfl_jax.types import Array


def replicate(tree, count: int):
    """Gives every leaf [...] a leading axis [count, ...] of copies."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def weighted_mean(tree, weight: Array):
    """Averages the leading axis of every leaf: [A, ...] -> [...], with weights [A] that need not sum to one.

    BatchNorm statistics are leaves like any other, so they are averaged too.
    """
    share = weight / jnp.sum(weight)
    return jax.tree.map(lambda x: jnp.tensordot(share.astype(x.dtype), x, axes=1), tree)


def mix(old, new, keep: Array | float):
    """`keep` * old + (1 - `keep`) * new, leaf by leaf."""
    return jax.tree.map(lambda a, b: keep * a + (1.0 - keep) * b, old, new)
