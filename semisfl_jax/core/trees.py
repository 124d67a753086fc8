"""Pytrees, most of them with a leading client axis: replicate, average, mix, gather, scatter, measure, pack;
and metrics, joined."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from semisfl_jax.core.errors import UserError
from semisfl_jax.core.types import Array, Tree


def replicate(tree: Tree, count: int) -> Tree:
    """Gives every leaf [...] a leading axis [count, ...] of copies."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def weighted_mean(tree: Tree, weight: Array, otherwise: Tree, psum: Callable = lambda sums: sums) -> Tree:
    """Averages the leading axis of every leaf: [A, ...] -> [...], with weights [A] that need not sum to one.

    BatchNorm statistics are leaves like any other, so they are averaged too. When all weights are 0, the result is
    `otherwise`, a tree of leaves [...]. `psum` is that of a `ClientAxis`, if `tree` holds only some of the clients.
    """
    chex.assert_trees_all_equal_structs(tree, otherwise)
    chex.assert_tree_shape_prefix(tree, weight.shape)
    total = psum(jnp.sum(weight))
    share = weight / jnp.where(total > 0, total, 1.0)
    means = psum(jax.tree.map(lambda x: jnp.tensordot(share.astype(x.dtype), x, axes=1), tree))
    return jax.tree.map(lambda mean, fallback: jnp.where(total > 0, mean, fallback), means, otherwise)


def gather(tree: Tree, ids: Array) -> Tree:
    """The rows of some clients: leaves [N, ...] and ids [A] -> leaves [A, ...]."""
    return jax.tree.map(lambda x: x[ids], tree)


def scatter(tree: Tree, ids: Array, new: Tree, weight: Array, all_gather: Callable = lambda rows: rows) -> Tree:
    """Writes the rows of some clients back: leaves [N, ...], with rows `ids` [A] replaced by `new`, leaves [A, ...].

    A client whose `weight` [A] is 0 keeps its old row. `all_gather` is that of a `ClientAxis`, if `new` holds only a
    shard of the clients; the result then has the rows of all of them.
    """
    leaves = jax.tree.leaves(tree)
    if not leaves:
        return tree
    weight, ids, new = all_gather((weight, ids, new))
    past = leaves[0].shape[0] + jnp.arange(len(ids), dtype=ids.dtype)  # rows there are dropped
    places = jnp.where(weight > 0, ids, past)
    # All differ, and said so: a deterministic program for a GPU would otherwise sort every number of the rows.
    return jax.tree.map(lambda old, rows: old.at[places].set(rows, mode='drop', unique_indices=True), tree, new)


def joined(*metrics: Mapping[str, Array]) -> dict[str, Array]:
    """All metrics in one dict; UserError: two have the same name."""
    names = [name for some in metrics for name in some]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f'two parts of the method write the metric {twice[0]}; call yours something else')
    return {name: value for some in metrics for name, value in some.items()}


def squared_distance(tree: Any, other: Any) -> Array | int:
    """|| tree - other ||^2 [] over all leaves; the number 0 if there are none."""
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), tree, other)))


def nbytes(tree: Any) -> int:
    """Bytes of all arrays of a tree, or of what has their shapes and types (`jax.eval_shape`)."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def pack(scalars: Tree) -> Array:
    """The n scalars [] of a tree, of 32 bits each, as one array [n] int32 of their bits; `unpack` reverses it.

    A loop stores what its steps report in one operation for each array, and on accelerators that is a kernel.
    """
    return jnp.stack([jax.lax.bitcast_convert_type(leaf, jnp.int32) for leaf in jax.tree.leaves(scalars)])


def unpack(packed: Array, like: Tree) -> Tree:
    """What `pack` packed, with leaves [...] from an array [..., n]: a tree of the structure and types of `like`, the
    scalars or their shapes (`jax.eval_shape`)."""
    leaves, structure = jax.tree.flatten(like)
    columns = jnp.moveaxis(packed, -1, 0)
    return jax.tree.unflatten(structure, map(jax.lax.bitcast_convert_type, columns, [leaf.dtype for leaf in leaves]))
