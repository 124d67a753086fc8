"""The machine: its platform and memory, and how programs are compiled for it and cached between process starts.

Figures of memory are upper bounds, as far as known, since other programs use part of it.
"""

import gc
import os
import platform as python_platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any

import jax

from semisfl_jax.base.errors import UserError, first_line, warn

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

PROC, CGROUP = Path('/proc'), Path('/sys/fs/cgroup')
_another: ContextVar[str] = ContextVar('platform', default='')  # set by `programs_for`


def platform() -> str:
    """Returns 'cpu', 'gpu' or 'tpu', which programs are written for: JAX's backend, unless in `programs_for`."""
    return _another.get() or jax.default_backend()


@contextmanager
def programs_for(platform: str) -> Iterator[None]:
    """Builds and traces programs within the block for 'cpu', 'gpu' or 'tpu', present or not."""
    token = _another.set(platform)
    try:
        yield
    finally:
        _another.reset(token)


# Values of JAX's own settings with which nothing trains. Checks for NaN are among them, since metrics are NaN on
# purpose, for example where all clients are lost.
_GUARDS = ('', *(f'_{way}' for way in ('host_to_device', 'device_to_host', 'device_to_device')))
_REFUSED: dict[Any, tuple[str, ...]] = {
    True: ('jax_enable_x64', 'jax_disable_jit', 'jax_debug_nans', 'jax_no_tracing', 'jax_no_execution'),
    'raise': ('jax_numpy_rank_promotion', 'jax_error_checking_behavior_nan'),
    'strict': ('jax_numpy_dtype_promotion',),
    **dict.fromkeys(('disallow', 'disallow_explicit'), tuple(f'jax_transfer_guard{way}' for way in _GUARDS)),
}


def check_settings() -> None:
    """Raises UserError, before JAX is used, for a setting of JAX with which nothing can be trained."""
    for value, names in _REFUSED.items():
        for name in names:
            if getattr(jax.config, name, None) == value:
                unset = f"unset {name.upper()}, or restore it by jax.config.update('{name}', …)"
                raise UserError(f"JAX's setting {name}={value} stops every run; {unset}")


def check_backend() -> None:
    """Raises UserError if this machine lacks the device that JAX was told to use."""
    try:
        jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # AssertionError for a GPU without its plugin
        platforms = jax.config.jax_platforms or ''  # type: ignore[attr-defined]
        why = f'JAX_PLATFORMS={platforms}: JAX has no such device here ({first_line(error)})'
        raise UserError(f"{why}; install its build of JAX, or set JAX_PLATFORMS=cpu, or '' for any") from error


def processor() -> str:
    """Returns the name of the processor, or of its architecture where the system does not say."""
    try:
        named = re.search(r'^model name\s*:(.*)', (PROC / 'cpuinfo').read_text(), re.MULTILINE)
    except OSError:  # not on Linux
        named = None
    name = ' '.join(named[1].split()) if named else ''
    return name or python_platform.processor() or python_platform.machine()


def instructions() -> str:
    """Returns the instructions that the processor knows, by their names on Linux; '' where the system does not say."""
    try:
        named = re.search(r'^(flags|Features)\s*:(.*)', (PROC / 'cpuinfo').read_text(), re.MULTILINE)
    except OSError:
        named = None
    return named[2] if named else ''


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def host_memory() -> int | None:
    """Returns the bytes that a process may hold, in memory and in swap; None: unknown.

    A container or `ulimit -v` may allow less than the machine has.
    """
    try:
        fields = dict(re.findall(r'^(\w+): +(\d+) kB', (PROC / 'meminfo').read_text(), re.MULTILINE))
    except OSError:  # not on Linux
        fields = {}
    memory, swap = (1024 * int(fields.get(name, 0)) for name in ('MemTotal', 'SwapTotal'))
    bounds = [memory + swap] if memory else []
    bounds += [limit + swap for limit in _limits_of_container()]
    if resource and (soft := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        bounds.append(soft)
    return min(bounds, default=None)


def most_resident() -> int | None:
    """Returns the most bytes of memory that this process has held; None: unknown."""
    if resource is None:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


def device_memory() -> int | None:
    """Returns the bytes that JAX may hold on one accelerator; None: unknown, or a CPU, which uses host memory."""
    device = jax.local_devices()[0]
    return None if device.platform == 'cpu' else memory_stats(device).get('bytes_limit')


def memory_stats(device: jax.Device) -> dict[str, int]:
    """Returns JAX's statistics on the memory of a device; {} for a CPU, and where the backend has none."""
    with suppress(NotImplementedError, jax.errors.JaxRuntimeError):
        return device.memory_stats() or {}
    return {}


def _limits_of_container() -> Iterator[int]:
    """Yields the memory limits of the process's control group (version 2) and of its ancestors."""
    with suppress(OSError):  # not on Linux
        named = re.search(r'^0::/(.*)', (PROC / 'self' / 'cgroup').read_text(), re.MULTILINE)
        group = CGROUP / (named[1] if named else '')
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # missing, or 'max'
                yield int((folder / 'memory.max').read_text())


# JAX's own settings that change random numbers, types, or the order of sums, besides those that runs refuse
SETTINGS = (
    *('jax_threefry_partitionable', 'jax_default_prng_impl', 'jax_random_seed_offset', 'jax_high_dynamic_range_gumbel'),
    *('jax_default_matmul_precision', 'jax_allow_f16_reductions', 'jax_softmax_custom_jvp'),
    *('jax_disable_most_optimizations', 'jax_optimization_level'),
)


def settings() -> dict[str, str]:
    """Returns the values of SETTINGS in this process."""
    return {name: str(getattr(jax.config, name, None)) for name in SETTINGS}


# config.precision -> precision of the matrix products and convolutions that remain in float32
PRECISIONS = {'float32': 'highest', 'tf32': 'tensorfloat32', 'bfloat16': 'tensorfloat32'}

# On a CPU, XLA delegates convolutions and matrix products to YNNPACK, which runs ours 2 to 8 times slower than the
# library that XLA uses without it (JAX 0.10 and 0.11; docs/performance.md).
CPU_OPTIONS: dict[str, str | bool] = {'xla_cpu_experimental_ynn_fusion_type': ''}

# Programs that compile faster are not cached. The small ones at startup (initial weights, evaluation) are cached:
# together they take seconds.
KEPT_FROM_SECONDS = 0.1


def jit(
    function: Callable, precision: str = 'tf32', deterministic: bool = True, donate_argnums: int | tuple = ()
) -> jax.stages.Wrapped:
    """Compiles a function by `jax.jit` with the compiler options that this package is benchmarked with.

    Args:
      function: the function.
      precision: config.precision, for products and convolutions in float32; activations become bfloat16 in the model.
      deterministic: restricts a GPU to kernels whose results are bitwise reproducible.
      donate_argnums: as in `jax.jit`.
    """

    @wraps(function)
    def at_precision(*arguments: Any) -> Any:
        with jax.default_matmul_precision(PRECISIONS[precision]):
            return function(*arguments)

    gpu_options: dict[str, str | bool] = {'xla_gpu_deterministic_ops': deterministic}
    options = {'cpu': CPU_OPTIONS, 'gpu': gpu_options}.get(platform())
    return jax.jit(at_precision, donate_argnums=donate_argnums, compiler_options=options)


_LEVEL = 'xla_backend_optimization_level'


def jit_once(function: Callable, out_shardings: Any = None) -> jax.stages.Wrapped:
    """Compiles a function that runs once by `jax.jit`: on a CPU in half the time, with less optimization of LLVM's.

    First states of all models have the same bytes as with full optimization.
    """
    given = _LEVEL in os.environ.get('XLA_FLAGS', '')
    options: Any = {_LEVEL: 1} if platform() == 'cpu' and not given else None
    return jax.jit(function, out_shardings=out_shardings, compiler_options=options)


def cache_programs(folder: Path) -> bool:
    """Caches compiled programs in `folder`, unless JAX is set to use another one ($JAX_COMPILATION_CACHE_DIR).

    Returns:
      Whether `folder` is used.
    """
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]  # JAX adds it when imported
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            warn(f'compiled programs are not kept, as {folder} cannot be written; set XDG_CACHE_HOME to another folder')
            return False
        _remove_damaged(folder)
        jax.config.update('jax_compilation_cache_dir', os.fspath(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', KEPT_FROM_SECONDS)
    return jax.config.jax_compilation_cache_dir == os.fspath(folder)  # type: ignore[attr-defined]


def _remove_damaged(folder: Path) -> None:
    """Removes programs that were not written whole, on a full disk or by a killed process.

    JAX would neither read them nor write them again. Looks only at programs written since it last looked.
    """
    stamp = folder / '.checked'
    with suppress(OSError, ImportError):  # ImportError if JAX has moved the function
        from jax._src.compilation_cache import decompress_executable

        since = stamp.stat().st_mtime if stamp.exists() else 0.0
        stamp.touch()
        for file in folder.glob('*-cache'):
            if file.stat().st_mtime >= since:
                try:
                    decompress_executable(file.read_bytes())
                except Exception:  # from whatever library JAX compresses with
                    file.unlink()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pauses garbage collection, unless the caller has switched it off.

    Tracing makes many objects and little garbage, and looking for garbage takes a third as long again.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def count_compilations() -> Iterator[Counter[str]]:
    """Counts programs found in the cache within the block, 'cache_hits', and those added to it, 'cache_misses'."""
    counted: Counter[str] = Counter()

    def listen(event: str, **_: str | int) -> None:
        counted[event.rpartition('/')[2]] += 1

    jax.monitoring.register_event_listener(listen)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_listener(listen)
