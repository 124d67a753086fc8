"""How programs are compiled and cached between process starts, with counts of cache hits."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import jax

from semisfl_jax.core import machine

# config.precision -> precision of the matrix products and convolutions that remain in float32
PRECISIONS = {'float32': 'highest', 'tf32': 'tensorfloat32', 'bfloat16': 'tensorfloat32'}

# On a CPU, XLA delegates convolutions and matrix products to YNNPACK, which runs ours 2 to 8 times slower than the
# library used when it is disabled (JAX 0.10 and 0.11; docs/performance.md).
_CPU_OPTIONS: dict[str, str | bool] = {'xla_cpu_experimental_ynn_fusion_type': ''}

# Programs that compile faster are not cached. The small ones at startup (initial weights, evaluation) are: together
# they take seconds.
KEPT_FROM_SECONDS = 0.1

_HIT, _MISS = '/jax/compilation_cache/cache_hits', '/jax/compilation_cache/cache_misses'


def jit(
    function: Callable, precision: str = 'tf32', deterministic: bool = True, donate_argnums: int | tuple = ()
) -> jax.stages.Wrapped:
    """`jax.jit` with the compiler options that this package is benchmarked with.

    Args:
      function: to compile.
      precision: config.precision. Activations become bfloat16 in the model, not here.
      deterministic: on a GPU, use only kernels whose results are bitwise reproducible.
      donate_argnums: as in `jax.jit`.
    """

    @wraps(function)
    def at_precision(*arguments: Any) -> Any:
        with jax.default_matmul_precision(PRECISIONS[precision]):
            return function(*arguments)

    gpu_options: dict[str, str | bool] = {'xla_gpu_deterministic_ops': deterministic}
    options = {'cpu': _CPU_OPTIONS, 'gpu': gpu_options}.get(machine.platform())
    return jax.jit(at_precision, donate_argnums=donate_argnums, compiler_options=options)


def keep(folder: Path) -> None:
    """Caches compiled programs in `folder`, unless JAX is set to use another one ($JAX_COMPILATION_CACHE_DIR)."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]  # JAX adds it when imported
        jax.config.update('jax_compilation_cache_dir', os.fspath(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', KEPT_FROM_SECONDS)


@contextmanager
def without_collecting() -> Iterator[None]:
    """Leaves garbage where it is: tracing makes many objects and little garbage, and looking for it takes a third as
    long again. Nothing is changed where the caller had switched collection off."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Count:
    """Numbers of programs found in the cache, and of programs compiled and added to it."""

    hits = 0
    misses = 0


@contextmanager
def count() -> Iterator[Count]:
    """Counts cache hits and misses within the block."""
    counted = Count()

    def listen(event: str, **_: str | int) -> None:
        counted.hits += event == _HIT
        counted.misses += event == _MISS

    jax.monitoring.register_event_listener(listen)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_listener(listen)
