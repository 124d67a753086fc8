"""This project's part in the benchmarks: configurations on synthetic images, and programs with compilation seconds."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from configs import cifar10, digits, svhn
from semisfl_jax.core import machine

CONFIGURATIONS = {'cnn': svhn, 'alexnet': cifar10, 'small_cnn': digits}


def made_up(model: str, num_labeled: int, unlabeled: int) -> ConfigDict:
    """The unchecked configuration of the data set that belongs to a model, with these numbers of synthetic images."""
    config = CONFIGURATIONS[model].get_config()
    config.data.update(fake=True, fake_size=num_labeled + unlabeled, num_labeled=num_labeled)
    return config


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
