"""The teacher: an exponential moving average of the student over supervised steps (Section III)."""

from __future__ import annotations

import chex
import jax.numpy as jnp

from semisfl_jax.core import trees
from semisfl_jax.core.types import Array, Tree


def coefficient(t: Array, decay: float, warmup: bool) -> Array:
    """a_t of the t-th update, t = 1, 2, ….

    With warm-up, as in the authors' code, a_t = min(1 - 1 / (t + 1), decay): 1/2, 2/3, 3/4, … up to `decay`.
    Without it, as in the paper, a_t = decay from the start.
    """
    if not warmup:
        return jnp.asarray(decay, jnp.float32)
    return jnp.minimum(1.0 - 1.0 / (t + 1.0), decay)


def update(teacher: Tree, student: Tree, keep: Array | float) -> Tree:
    """`keep` * teacher + (1 - `keep`) * student over parameters and BatchNorm statistics alike."""
    chex.assert_trees_all_equal_shapes_and_dtypes(teacher, student)
    return trees.mix(teacher, student, keep)
