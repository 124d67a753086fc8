"""How programs are compiled, kept from one start to the next, and whether one was found there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import jax

# config.precision -> precision of the matrix products and convolutions that are left in float32
PRECISIONS = {'float32': 'highest', 'tf32': 'tensorfloat32', 'bfloat16': 'tensorfloat32'}

# On a CPU, XLA hands convolutions and matrix products to YNNPACK, which computes ours 2 to 8 times slower than the
# library that takes its place when it is switched off (JAX 0.10 and 0.11; docs/performance.md).
_CPU_OPTIONS = {'xla_cpu_experimental_ynn_fusion_type': ''}

# Programs that compile faster are not kept. The small ones of a start (initial weights, evaluation) are: together they
# take seconds.
KEPT_FROM_SECONDS = 0.1

_HIT, _MISS = '/jax/compilation_cache/cache_hits', '/jax/compilation_cache/cache_misses'


def jit(function: Callable, precision: str = 'tf32', deterministic: bool = True, donate_argnums: int | tuple = ()):
    """`jax.jit` with the compiler options that this package is measured with.

    Args:
      function: to compile.
      precision: config.precision. Activations become bfloat16 in the model, not here.
      deterministic: on a GPU, only kernels that give the same bits from run to run.
      donate_argnums: as in `jax.jit`.
    """

    @wraps(function)
    def at_precision(*arguments):
        with jax.default_matmul_precision(PRECISIONS[precision]):
            return function(*arguments)

    options = {'cpu': _CPU_OPTIONS, 'gpu': {'xla_gpu_deterministic_ops': deterministic}}.get(jax.default_backend())
    return jax.jit(at_precision, donate_argnums=donate_argnums, compiler_options=options)


def keep(folder: Path) -> None:
    """Keeps compiled programs in `folder`, unless JAX has been told of another one ($JAX_COMPILATION_CACHE_DIR)."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update('jax_compilation_cache_dir', os.fspath(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', KEPT_FROM_SECONDS)


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
