"""The machine: the device that programs are written for, and available memory.

Memory is an upper bound, as far as known, since other programs use part of it.
"""

from __future__ import annotations

import itertools
import os
import platform as python_platform
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import jax

PROC, CGROUP = Path('/proc'), Path('/sys/fs/cgroup')
_VECTORS = {'avx512f': 'avx512', 'avx2': 'avx2', 'sve': 'sve', 'asimd': 'neon'}  # flag in cpuinfo -> name, widest first


class Device(NamedTuple):
    """A kind of device, as far as the speed of programs depends on it."""

    platform: str  # 'cpu' | 'gpu' | 'tpu'
    name: str  # what it calls itself: 'AMD EPYC 9R14', 'NVIDIA H200', 'TPU v5 lite'; '': unknown
    maker: str = ''  # of a CPU: 'AuthenticAMD', 'GenuineIntel', or its architecture: 'arm64'
    vectors: str = ''  # the widest vector instructions of a CPU that are known here: 'avx512', 'neon', ...
    cores: int = 0  # of a CPU, those that this process may use

    @property
    def title(self) -> str:
        """In messages: 'AMD EPYC 9R14 with avx512, 2 cores'."""
        vectors = f' with {self.vectors}' if self.vectors else ''
        cores = f', {self.cores} core{"s" if self.cores > 1 else ""}' if self.cores else ''
        return f'{self.name or self.platform.upper()}{vectors}{cores}'


_another: ContextVar[Device | None] = ContextVar('device', default=None)  # than this machine's


def platform() -> str:
    """What programs are written for: 'cpu', 'gpu' or 'tpu'; JAX's default backend, unless in `programs_for`."""
    another = _another.get()
    return another.platform if another else jax.default_backend()


def device() -> Device:
    """The kind of device that programs are written for: JAX's first one, unless in `programs_for`."""
    if another := _another.get():
        return another
    first = jax.devices()[0]
    return _cpu() if first.platform == 'cpu' else Device(jax.default_backend(), first.device_kind)


@contextmanager
def programs_for(platform: str, name: str = '') -> Iterator[None]:
    """Within the block, programs are built and traced for a device, present or not.

    Args:
      platform: 'cpu', which is always that of this machine, 'gpu' or 'tpu'.
      name: of a GPU or TPU, as in `Device`.
    """
    token = _another.set(_cpu() if platform == 'cpu' else Device(platform, name))
    try:
        yield
    finally:
        _another.reset(token)


def processor() -> str:
    """The name of the processor, or of its architecture where the system does not say."""
    return _cpuinfo().get('model name') or python_platform.processor() or python_platform.machine()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def _cpu() -> Device:
    info = _cpuinfo()
    flags = (info.get('flags') or info.get('Features') or '').split()  # x86 or ARM
    vectors = next((name for flag, name in _VECTORS.items() if flag in flags), '')
    return Device('cpu', processor(), info.get('vendor_id') or python_platform.machine(), vectors, cores())


def _cpuinfo() -> dict[str, str]:
    """What Linux says about the first processor; {} elsewhere."""
    info: dict[str, str] = {}
    try:
        with (PROC / 'cpuinfo').open() as lines:
            for line in itertools.takewhile(str.strip, lines):
                key, _, value = line.partition(':')
                info[key.strip()] = ' '.join(value.split())
    except OSError:
        pass
    return info


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
