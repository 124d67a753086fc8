"""Named random streams: every key of an experiment is folded from the root key.

A stream is named by strings and integers, `fold(key, 'round', 3, 'client', 17)`, so a key depends only on its purpose
and never on the order in which keys are requested. Permuting the cohort permutes the results, a resumed run draws the
same numbers as an uninterrupted one, and checkpoints need no keys.
"""

import zlib

import jax
import numpy as np


def root(seed: int) -> jax.Array:
    """Returns the root key of an experiment."""
    return jax.random.key(seed)


def fold(key: jax.Array, *path: str | int | jax.Array) -> jax.Array:
    """Derives the key of a named stream; distinct paths give independent streams.

    Args:
      key: a typed JAX key.
      *path: names (hashed with CRC-32) and integers, which may be traced.

    Returns:
      The stream's key.
    """
    for part in path:
        key = jax.random.fold_in(key, zlib.crc32(part.encode()) if isinstance(part, str) else part)
    return key


def host(seed: int, *path: str | int) -> np.random.Generator:
    """Returns the NumPy generator of a named stream, for draws on the host such as data splits and cohorts.

    Args:
      seed: the seed of the experiment.
      *path: names and integers, as for `fold`.

    Returns:
      A generator.
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    return np.random.default_rng([seed, *words])
