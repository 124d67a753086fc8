"""This project's part in the benchmarks: configurations on synthetic images, and programs with compilation seconds."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from ml_collections import ConfigDict

from benchmarks.sides import NUM_LABELED, PER_CLIENT
from configs import cifar10, digits, svhn
from semisfl_jax import config as config_lib
from semisfl_jax.base import machine

CONFIGURATIONS = {'cnn': svhn, 'alexnet': cifar10, 'small_cnn': digits}


def for_case(config: ConfigDict, case: Any, keys: Mapping[str, Any] = MappingProxyType({})) -> ConfigDict:
    """`config` checked and resolved: with the settings of a case and then `keys`, on synthetic images, all clients
    active and equal."""
    config.data.update(fake=True, fake_size=NUM_LABELED + PER_CLIENT * case.clients, num_labeled=NUM_LABELED)
    config.federation.update(num_clients=case.clients, num_active=case.clients, partition='uniform')
    config.federation.update(client_map=case.client_map, client_chunk=case.client_chunk)
    config.model.convolution = case.convolution
    config.update(precision=case.precision, k_s=case.k_s, k_u=case.k_u)
    config.update(batch_size=case.batch_size, server_batch_size=case.batch_size)
    if not case.augment:
        config.augment.update(flip=False, crop=0.0, operations=0, cutout=0)
    config.update_from_flattened_dict(dict(keys))
    config_lib.check(config)
    return config_lib.resolve(config)


def first_start() -> None:
    """Disables the cache of compiled programs, so that compilation seconds are those of a first start."""
    jax.config.update('jax_enable_compilation_cache', False)


def compiled(function: Callable, config: ConfigDict, *arguments) -> tuple[Any, float]:
    """A program for these arguments, which donates the second one, and the seconds of its compilation."""
    start = time.perf_counter()
    jitted = machine.jit(function, config.precision, config.deterministic, donate_argnums=1)
    program = jitted.lower(*arguments).compile()
    return program, time.perf_counter() - start


def facts() -> dict[str, Any]:
    """Versions and device."""
    device = jax.devices()[0]
    return {
        'versions': {name: importlib.metadata.version(name) for name in ('jax', 'jaxlib', 'flax', 'optax', 'numpy')},
        'device': f'{device.platform} ({device.device_kind})',
    }


def device_memory() -> int | None:
    """Peak bytes in use on the first device; None on a CPU."""
    return (jax.devices()[0].memory_stats() or {}).get('peak_bytes_in_use')
