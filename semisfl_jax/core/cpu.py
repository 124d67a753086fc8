"""A CPU as several devices.

To JAX a CPU is one device, whose cores share every operation. Those of small models gain little by a second core;
devices of their own compute other clients, or other trials, at the same time.
"""

from __future__ import annotations

import os

import jax

_FLAG = 'xla_force_host_platform_device_count'
_made = 1  # devices that `split` made of the CPU; JAX has as many until the process ends


def split(devices: int) -> None:
    """Makes the CPU `devices` devices, as long as JAX has not begun to use it and nobody else has said how many.

    Accelerators are not affected. Where it is too late, `make_mesh` says so.
    """
    global _made
    given = jax.config.jax_num_cpu_devices >= 0 or _FLAG in os.environ.get('XLA_FLAGS', '')  # type: ignore[attr-defined]
    if devices > 1 and not given:
        try:
            jax.config.update('jax_num_cpu_devices', devices)
        except RuntimeError:  # JAX has begun
            return
        _made = devices


def was_split() -> bool:
    """Whether programs run on a CPU that an earlier run of this process has split."""
    return _made > 1 and jax.default_backend() == 'cpu'
