"""The machine: the platform that programs are written for, and available memory.

Memory is an upper bound, as far as known, since other programs use part of it.
"""

from __future__ import annotations

import os
import platform as python_platform
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import jax

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
    memory, swap = _physical()
    bounds = [memory + swap] if memory else []
    bounds += [limit + swap for limit in _of_container()]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        bounds.append(soft)
    return min(bounds, default=None)


def device_memory() -> int | None:
    """Bytes that JAX may hold on one accelerator. None: unknown, or a CPU, which uses host memory."""
    device = jax.local_devices()[0]
    if device.platform == 'cpu':
        return None
    try:
        return (device.memory_stats() or {}).get('bytes_limit')
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None


def _physical() -> tuple[int, int]:
    """Bytes of memory and of swap, 0 if unknown."""
    try:
        fields = dict(re.findall(r'^(\w+): +(\d+) kB', (PROC / 'meminfo').read_text(), re.MULTILINE))
    except OSError:  # not on Linux
        fields = {}
    return 1024 * int(fields.get('MemTotal', 0)), 1024 * int(fields.get('SwapTotal', 0))


def _of_container() -> Iterator[int]:
    """Memory limits of the process's control groups, version 1 or 2, and of their ancestors."""
    try:
        lines = (PROC / 'self' / 'cgroup').read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(':', 2)
        if controllers and 'memory' not in controllers.split(','):
            continue
        root, file = (CGROUP / 'memory', 'memory.limit_in_bytes') if controllers else (CGROUP, 'memory.max')
        group = root / path.lstrip('/')
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (limit := _number(folder / file)):
                yield limit


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # missing, or 'max'
        return None
