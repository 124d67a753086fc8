"""The devices that programs are compiled for, with what their makers say of memory and speed.

Rates are peaks for dense products, in operations per second (a multiplication and an addition are two).
"""

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from semisfl_jax import clients
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError, install, shorten, use_one_of

HERE = 'cpu'  # this machine
_EXTRAS = {'tpu': 'preview-tpu', 'gpu': 'preview-cuda'}  # that install the compiler of a platform
_TPU_GRIDS = {4: '2x2', 8: '2x4', 16: '4x4', 32: '4x8', 64: '8x8', 128: '8x16', 256: '16x16'}  # chips -> topology
_NO_TPU = {  # nothing asks what TPU this machine has, or takes it, or complains that there is none
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
    'TPU_STDERR_LOG_LEVEL': '3',
    'TPU_MIN_LOG_LEVEL': '3',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
_GPUS = 8  # of one machine


class Target(NamedTuple):
    """A kind of device."""

    name: str
    platform: str  # 'cpu' | 'gpu' | 'tpu'
    title: str
    memory: int | None  # bytes; None: unknown
    bandwidth: float | None = None  # bytes per second between memory and cores; None: unknown
    peak: Mapping[str, float] = MappingProxyType({})  # config.precision -> operations per second; {}: unknown
    source: str = ''  # of the numbers
    cores: str = ''  # GPUs: fields of XLA's GpuTargetConfigProto

    @property
    def usable(self) -> int | None:
        """Returns the bytes that JAX takes by default ($XLA_PYTHON_CLIENT_MEM_FRACTION); None: unknown."""
        return self.memory * 3 // 4 if self.memory and self.platform == 'gpu' else self.memory


class Devices(NamedTuple):
    """What shapes are placed on."""

    first: Any  # jax.Device
    mesh: Mesh | None  # of several devices


def _gpu(
    name: str, title: str, memory: int, bandwidth: float, peak: tuple[float, float, float], cores: str, source: str = ''
) -> Target:
    """Describes a GPU; `peak` is of float32, tf32 and bfloat16."""
    rates = dict(zip(('float32', 'tf32', 'bfloat16'), peak, strict=True))
    source = source or f'NVIDIA {name.upper()} data sheet, without sparsity'
    return Target(name, 'gpu', f'NVIDIA {title}', memory, bandwidth, rates, source, cores)


def _tpu(name: str, memory: int, bandwidth: float, peak: float) -> Target:
    """Describes a TPU, which multiplies in bfloat16: float32 takes six such products, tf32 three."""
    rates = {'float32': peak / 6, 'tf32': peak / 3, 'bfloat16': peak}
    source = f'Google Cloud documentation of TPU {name}'
    return Target(name, 'tpu', f'Google TPU {name}', memory, bandwidth, rates, source)


# The part of a GpuTargetConfigProto that differs between GPUs, without what a Target says anyway
_HOPPER = (
    'cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES } core_count: 132 fpus_per_core: 128 '
    'shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 threads_per_core_limit: 2048 '
    'l2_cache_size: 52428800 clock_rate_ghz: 1.98'
)
_AMPERE = (
    'cuda_compute_capability { major: 8 feature_extension: NONE } core_count: 108 fpus_per_core: 64 '
    'shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 threads_per_core_limit: 2048 '
    'l2_cache_size: 41943040 clock_rate_ghz: 1.41'
)
_TURING = (
    'cuda_compute_capability { major: 7 minor: 5 feature_extension: NONE } core_count: 40 fpus_per_core: 64 '
    'shared_memory_per_core: 65536 shared_memory_per_block_optin: 65536 threads_per_core_limit: 1024 '
    'l2_cache_size: 4194304 clock_rate_ghz: 1.59'
)
_HOPPER_PEAK = (67e12, 494.5e12, 989.5e12)
_OF_T4 = 'NVIDIA T4 data sheet; it multiplies neither tf32 nor bfloat16, so all at the rate of float32'
TARGETS = {
    target.name: target
    for target in (
        _gpu('h200', 'H200 SXM', 151397597184, 4.8e12, _HOPPER_PEAK, _HOPPER),
        _gpu('h100', 'H100 SXM 80GB', 84942979072, 3.35e12, _HOPPER_PEAK, _HOPPER),
        _gpu('a100', 'A100 SXM 80GB', 85100068864, 2.039e12, (19.5e12, 156e12, 312e12), _AMPERE),
        _gpu('t4', 'T4', 15843721216, 320e9, (8.1e12, 8.1e12, 8.1e12), _TURING, _OF_T4),
        _tpu('v5e', memory=63 * 2**28, bandwidth=819e9, peak=197e12),  # 15.75 of 16 GiB, as its compiler says
        _tpu('v6e', memory=125 * 2**28, bandwidth=1.638e12, peak=918e12),  # 31.25 of 32 GiB, likewise
    )
}


def get(name: str) -> Target:
    """Returns the target of a name.

    Raises:
      UserError: there is none.
    """
    if name == HERE:
        return Target(HERE, 'cpu', 'the CPU of this machine', machine.host_memory())
    if name not in TARGETS:
        raise UserError(f"--target='{name}' is unknown; {use_one_of(name, (*TARGETS, HERE))}")
    return TARGETS[name]


def devices(target: Target, count: int) -> Devices:
    """Returns that many devices of a target, none of which need be present.

    Args:
      target: the kind of device.
      count: number of devices.

    Raises:
      UserError: no machine has so many, or the compiler does not start.
    """
    if target.name == HERE:
        clients.split_cpu(count)
        return Devices(jax.devices('cpu')[0], clients.make_mesh(count))
    try:
        topology: Sequence[Any] = _tpus(target, count) if target.platform == 'tpu' else _gpus(target, count)
    except RuntimeError as error:  # the class of JAX's errors, and of NotImplementedError for a platform it lacks
        reason = shorten(' '.join(str(error).split()))
        advice = f'in a separate environment, {install(_EXTRAS[target.platform])}'
        raise UserError(f'the compiler for --target={target.name} does not start ({reason}); {advice}') from error
    mesh = Mesh(np.array(topology[:count]), (clients.AXIS,)) if count > 1 else None
    return Devices(topology[0], mesh)


def _tpus(target: Target, count: int) -> Sequence[Any]:
    for name, value in _NO_TPU.items():
        os.environ.setdefault(name, value)
    chips = next((chips for chips in _TPU_GRIDS if chips >= count), None)
    if chips is None:
        raise UserError(f'--devices={count} is more than the {max(_TPU_GRIDS)} chips of a {target.title}; use fewer')
    return topologies.get_topology_desc(f'{target.name}:{_TPU_GRIDS[chips]}', platform='tpu').devices


def _gpus(target: Target, count: int) -> Sequence[Any]:
    if count > _GPUS:
        raise UserError(f'--devices={count} is more than the {_GPUS} GPUs of one machine; use {_GPUS} or fewer')
    jax.devices('cpu')  # on its first use, JAX looks for plugins
    # XLA's description of a GPU, a GpuTargetConfigProto; the limits in it are the same for all targets
    config = f"""
        gpu_device_info {{
          threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
          memory_bandwidth: {int(target.bandwidth or 0)} device_memory_size: {target.memory}
          {target.cores}
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
        device_description_str: "{target.title}"
    """
    topology = f'1x1x{count}'
    return topologies.get_topology_desc('', 'cuda', target_config=config, topology=topology).devices
