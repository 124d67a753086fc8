"""The images that a client of SemiFL trains on: FIX, whose labels are confident, and MIX, drawn from all."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax.core import rng, sampling
from semisfl_jax.core.types import Array


class Sets(NamedTuple):
    """The images a client trains on in one round, as indices into its S images."""

    fix: Array  # [S] int32, the first `num_confident`: its confident images, each once
    mix: Array  # [S] int32, the first `num_confident`: drawn from all its images, with replacement
    num_confident: Array  # [] int32


def draw_sets(key: Array, confident: Array, size: Array) -> Sets:
    """FIX and MIX of a client with `size` [] images; `confident` [S] is False from `size` on."""
    # A separate key per draw, so that no draw depends on S, the size of the largest client.
    keys = jax.vmap(lambda place: rng.fold(key, place))(jnp.arange(confident.shape[0]))
    mix = jax.vmap(lambda place_key: jax.random.randint(place_key, (), 0, jnp.maximum(size, 1)))(keys)
    return Sets(jnp.argsort(~confident, stable=True).astype(jnp.int32), mix, jnp.sum(confident, dtype=jnp.int32))


def pair(key: Array, sets: Sets, offset: Array) -> tuple[Array, Array]:
    """Elements `offset` [B] int32 of the endless sequences over FIX and over MIX, each epoch in a new order."""

    def read(name: str, places: Array) -> Array:
        return places[sampling.read(jax.random.bits(rng.fold(key, name)), offset, sets.num_confident)]

    return read('fix', sets.fix), read('mix', sets.mix)


def of_epochs(key: Array, sets: Sets, size: Array, t: Array, batch_size: int) -> tuple[Array, Array, Array]:
    """Batch `t` [] of passes over FIX whose last batch may be short, with as many new draws from all `size` images.

    Returns:
      fix [B], mix [B] and valid [B] bool. MIX is redrawn at every access, so no two passes share it.
    """
    offset, valid = sampling.of_pass(t, batch_size, sets.num_confident)
    fix = sets.fix[sampling.read(jax.random.bits(rng.fold(key, 'fix')), offset, sets.num_confident)]
    return fix, jax.random.randint(rng.fold(key, t, 'mix'), (batch_size,), 0, jnp.maximum(size, 1)), valid
