"""Operations on pytrees, most of them with a leading client axis, and on dicts of metrics."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from semisfl_jax.base.errors import UserError
from semisfl_jax.core.types import Array, Tree


def replicate(tree: Tree, count: int) -> Tree:
    """Gives every leaf [...] a leading axis [count, ...] of copies."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), tree)


def weighted_mean(tree: Tree, weight: Array, otherwise: Tree, psum: Callable = lambda sums: sums) -> Tree:
    """Averages the leading axis of every leaf, BatchNorm statistics like any other: [A, ...] -> [...].

    Args:
      tree: leaves [A, ...].
      weight: [A]; the weights need not sum to one.
      otherwise: leaves [...], the result if all weights are 0.
      psum: that of a `ClientAxis`, if `tree` holds only some of the clients.

    Returns:
      Leaves [...].
    """
    chex.assert_trees_all_equal_structs(tree, otherwise)
    chex.assert_tree_shape_prefix(tree, weight.shape)
    total = psum(jnp.sum(weight))
    share = weight / jnp.where(total > 0, total, 1.0)
    means = psum(jax.tree.map(lambda x: jnp.tensordot(share.astype(x.dtype), x, axes=1), tree))
    return jax.tree.map(lambda mean, fallback: jnp.where(total > 0, mean, fallback), means, otherwise)


def gather(tree: Tree, ids: Array) -> Tree:
    """Returns the rows of some clients: leaves [N, ...] and ids [A] -> leaves [A, ...]."""
    return jax.tree.map(lambda x: x[ids], tree)


def scatter(tree: Tree, ids: Array, new: Tree, weight: Array, all_gather: Callable = lambda rows: rows) -> Tree:
    """Writes the rows of some clients back.

    Args:
      tree: leaves [N, ...].
      ids: [A] int32, the rows to replace.
      new: leaves [A, ...].
      weight: [A]; a client of weight 0 keeps its old row.
      all_gather: that of a `ClientAxis`, if `new` holds only a shard of the clients; the result has the rows of all.

    Returns:
      Leaves [N, ...].
    """
    leaves = jax.tree.leaves(tree)
    if not leaves:
        return tree
    weight, ids, new = all_gather((weight, ids, new))
    past = leaves[0].shape[0] + jnp.arange(len(ids), dtype=ids.dtype)  # out of bounds: these rows are dropped
    places = jnp.where(weight > 0, ids, past)
    # unique_indices holds, and matters: without it a deterministic GPU program sorts every number of the rows.
    return jax.tree.map(lambda old, rows: old.at[places].set(rows, mode='drop', unique_indices=True), tree, new)


def joined(*metrics: Mapping[str, Array]) -> dict[str, Array]:
    """Joins metrics in one dict.

    Args:
      *metrics: dicts of metrics.

    Returns:
      All metrics.

    Raises:
      UserError: two of them have the same name.
    """
    names = [name for some in metrics for name in some]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f'two parts of the method write the metric {twice[0]}; call yours something else')
    return {name: value for some in metrics for name, value in some.items()}


def squared_distance(tree: Any, other: Any) -> Array | int:
    """Computes || tree - other ||^2 [] over all leaves; the number 0 if there are none."""
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), tree, other)))


def nbytes(tree: Any) -> int:
    """Counts the bytes of a tree of arrays, or of their shapes and types (`jax.eval_shape`)."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def pack(scalars: Tree) -> Array:
    """Packs the n scalars [] of a tree, 32 bits each, into one int32 array [n] of their bits; `unpack` reverses it.

    A loop stores each array that its steps report with an operation of its own, which is a kernel on accelerators.
    """
    return jnp.stack([jax.lax.bitcast_convert_type(leaf, jnp.int32) for leaf in jax.tree.leaves(scalars)])


def unpack(packed: Array, like: Tree) -> Tree:
    """Reverses `pack`, for any number of leading axes.

    Args:
      packed: [..., n] int32.
      like: the packed scalars, or their shapes and types (`jax.eval_shape`).

    Returns:
      A tree with the structure and types of `like`, leaves [...].
    """
    leaves, structure = jax.tree.flatten(like)
    columns = jnp.moveaxis(packed, -1, 0)
    return jax.tree.unflatten(structure, map(jax.lax.bitcast_convert_type, columns, [leaf.dtype for leaf in leaves]))
