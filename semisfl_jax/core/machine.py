"""The machine: its platform and memory, and how programs are compiled for it and cached between process starts.

Memory is an upper bound, as far as known, since other programs use part of it.
"""

from __future__ import annotations

import gc
import os
import platform as python_platform
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any

import jax

from semisfl_jax.core.errors import warn

PROC, CGROUP = Path('/proc'), Path('/sys/fs/cgroup')
_another: ContextVar[str] = ContextVar('platform', default='')  # than this machine's


def platform() -> str:
    """What programs are written for: 'cpu', 'gpu' or 'tpu'; JAX's default backend, unless in `programs_for`."""
    return _another.get() or jax.default_backend()


@contextmanager
def programs_for(platform: str) -> Iterator[None]:
    """Within the block, programs are built and traced for 'cpu', 'gpu' or 'tpu', present or not."""
    token = _another.set(platform)
    try:
        yield
    finally:
        _another.reset(token)


def processor() -> str:
    """The name of the processor, or of its architecture where the system does not say."""
    try:
        named = re.search(r'^model name\s*:(.*)', (PROC / 'cpuinfo').read_text(), re.MULTILINE)
    except OSError:  # not on Linux
        named = None
    name = ' '.join(named[1].split()) if named else ''
    return name or python_platform.processor() or python_platform.machine()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def host_memory() -> int | None:
    """Bytes that a process may hold, in memory and in swap: those of the machine, or fewer if limited by a container
    or `ulimit -v`. None: unknown."""
    try:
        fields = dict(re.findall(r'^(\w+): +(\d+) kB', (PROC / 'meminfo').read_text(), re.MULTILINE))
    except OSError:  # not on Linux
        fields = {}
    memory, swap = (1024 * int(fields.get(name, 0)) for name in ('MemTotal', 'SwapTotal'))
    bounds = [memory + swap] if memory else []
    bounds += [limit + swap for limit in _limits_of_container()]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        bounds.append(soft)
    return min(bounds, default=None)


def device_memory() -> int | None:
    """Bytes that JAX may hold on one accelerator. None: unknown, or a CPU, which uses host memory."""
    device = jax.local_devices()[0]
    return None if device.platform == 'cpu' else memory_stats(device).get('bytes_limit')


def memory_stats(device: jax.Device) -> dict[str, int]:
    """What JAX knows of the memory of a device; {} for a CPU, and where the backend does not say."""
    with suppress(NotImplementedError, jax.errors.JaxRuntimeError):
        return device.memory_stats() or {}
    return {}


def _limits_of_container() -> Iterator[int]:
    """Memory limits of the process's control group (of version 2) and of its ancestors."""
    with suppress(OSError):  # not on Linux
        named = re.search(r'^0::/(.*)', (PROC / 'self' / 'cgroup').read_text(), re.MULTILINE)
        group = CGROUP / (named[1] if named else '')
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # missing, or 'max'
                yield int((folder / 'memory.max').read_text())


# config.precision -> precision of the matrix products and convolutions that remain in float32
PRECISIONS = {'float32': 'highest', 'tf32': 'tensorfloat32', 'bfloat16': 'tensorfloat32'}

# On a CPU, XLA delegates convolutions and matrix products to YNNPACK, which runs ours 2 to 8 times slower than the
# library used when it is disabled (JAX 0.10 and 0.11; docs/performance.md).
_CPU_OPTIONS: dict[str, str | bool] = {'xla_cpu_experimental_ynn_fusion_type': ''}

# Programs that compile faster are not cached. The small ones at startup (initial weights, evaluation) are: together
# they take seconds.
KEPT_FROM_SECONDS = 0.1


def jit(
    function: Callable, precision: str = 'tf32', deterministic: bool = True, donate_argnums: int | tuple = ()
) -> jax.stages.Wrapped:
    """`jax.jit` with the compiler options that this package is benchmarked with.

    `precision` is config.precision; activations become bfloat16 in the model, not here. With `deterministic`, a GPU
    uses only kernels whose results are bitwise reproducible.
    """

    @wraps(function)
    def at_precision(*arguments: Any) -> Any:
        with jax.default_matmul_precision(PRECISIONS[precision]):
            return function(*arguments)

    gpu_options: dict[str, str | bool] = {'xla_gpu_deterministic_ops': deterministic}
    options = {'cpu': _CPU_OPTIONS, 'gpu': gpu_options}.get(platform())
    return jax.jit(at_precision, donate_argnums=donate_argnums, compiler_options=options)


def cache_programs(folder: Path) -> None:
    """Caches compiled programs in `folder`, unless JAX is set to use another one ($JAX_COMPILATION_CACHE_DIR)."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]  # JAX adds it when imported
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            warn(f'compiled programs are not kept, as {folder} cannot be written; set XDG_CACHE_HOME to another folder')
            return
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


@contextmanager
def count_compilations() -> Iterator[Counter[str]]:
    """Counts the programs found in the cache within the block, 'cache_hits', and those added to it, 'cache_misses'."""
    counted: Counter[str] = Counter()

    def listen(event: str, **_: str | int) -> None:
        counted[event.rpartition('/')[2]] += 1

    jax.monitoring.register_event_listener(listen)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_listener(listen)
