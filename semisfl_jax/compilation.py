"""Compiled programs kept from one start to the next, and whether one was found there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

_HIT, _MISS = '/jax/compilation_cache/cache_hits', '/jax/compilation_cache/cache_misses'


def keep(folder: Path) -> None:
    """Keeps compiled programs in `folder`, unless JAX has been told of another one ($JAX_COMPILATION_CACHE_DIR)."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update('jax_compilation_cache_dir', os.fspath(folder))
    # The small programs of a start (initial weights, evaluation) count, too: together they take seconds.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)


class Count:
    """Programs found in the cache, and programs compiled and put there."""

    hits = 0
    misses = 0


@contextmanager
def count() -> Iterator[Count]:
    """Counts what happens in the block."""
    counted = Count()

    def listen(event: str, **_) -> None:
        counted.hits += event == _HIT
        counted.misses += event == _MISS

    jax.monitoring.register_event_listener(listen)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_listener(listen)
