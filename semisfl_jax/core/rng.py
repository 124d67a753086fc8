"""Named random streams: every key of an experiment is folded from the root key.

A stream is named by strings and integers, `fold(key, 'round', 3, 'client', 17)`, so a key depends only on its purpose
and never on the order in which keys were requested. Permuting the cohort permutes the results, a resumed run
draws the same numbers as an uninterrupted one, and no key needs to be stored in a checkpoint.
"""

from __future__ import annotations

import zlib

import jax
import numpy as np


def root(seed: int) -> jax.Array:
    """The root key of an experiment."""
    return jax.random.key(seed)


def fold(key: jax.Array, *path: str | int | jax.Array) -> jax.Array:
    """The key of the stream `path` under a typed JAX key: names (hashed with CRC-32) and integers, including traced
    ones. Distinct paths give independent streams."""
    for part in path:
        key = jax.random.fold_in(key, zlib.crc32(part.encode()) if isinstance(part, str) else part)
    return key


def host(seed: int, *path: str | int) -> np.random.Generator:
    """The counterpart of `fold` for NumPy draws on the host, such as data splits and cohorts."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return np.random.default_rng([seed, *words])
