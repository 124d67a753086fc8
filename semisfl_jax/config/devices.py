"""How many devices share the work of a configuration, and whether devices and processes can."""

from __future__ import annotations

import re
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms, core
from semisfl_jax.config import keys
from semisfl_jax.core import hosts, machine
from semisfl_jax.core.errors import UserError


def count(config: ConfigDict) -> int:
    """How many devices share the work of a resolved configuration; `parallel.devices` 0 is as many as can.

    Divides the CPU, if JAX has not begun to use it: into as many devices as asked for, or with 0 into one for each core
    where these would hardly wait for each other: for trials, and for clients that train whole models. Clients of split
    methods meet in every iteration.

    Raises:
      UserError: there are more processes than active clients.
    """
    asked = config.parallel.devices
    if asked:
        if not config.parallel.coordinator:
            core.split_cpu(asked)
        return asked
    if config.seeds:
        core.split_cpu(min(machine.cores(), len(config.seeds)))
        return core.available_to_trials(len(config.seeds))
    clients = 1 if indivisible(keys.flat(config)) else config.federation.num_active
    if algorithms.get(config.algorithm).whole_model and not config.parallel.coordinator:
        core.split_cpu(min(machine.cores(), clients))
    elif core.cpu_was_split():
        return 1
    return core.available(clients)


def check(flat: dict[str, Any]) -> None:
    """Checks `parallel.*` of a flat configuration, without querying the devices themselves.

    Raises:
      UserError: for the first mistake.
    """
    devices, active = flat['parallel.devices'], flat['federation.num_active']
    _check_processes(flat)
    if seeds := flat['seeds']:
        if devices and len(seeds) % devices:
            good = max(n for n in range(1, devices) if len(seeds) % n == 0)
            raise UserError(
                f'config.parallel.devices={devices} does not divide the {len(seeds)} trials of config.seeds, and a '
                f'device computes whole trials; use {good} devices, or another number of seeds'
            )
        return
    if devices > 1 and (reason := indivisible(flat)):
        raise UserError(f'config.parallel.devices={devices}: {reason}; use 1')
    if devices > active:
        raise UserError(
            f'config.parallel.devices={devices} is more than federation.num_active={active}, and a device computes '
            f'whole clients; use at most {active}'
        )


def indivisible(flat: dict[str, Any]) -> str:
    """Why the clients of a method cannot be divided over devices or processes; '' if they can."""
    method = algorithms.get(flat['algorithm'])
    return method.sequential(flat) if method.clients else f'{method.name} has no clients to distribute'


def _check_processes(flat: dict[str, Any]) -> None:
    """Configurations differ between processes only in `process_id`, so all processes find the same mistakes here."""
    coordinator, count, process_id = (
        flat[f'parallel.{name}'] for name in ('coordinator', 'num_processes', 'process_id')
    )
    named = coordinator not in ('', hosts.AUTO)
    address = re.fullmatch(r'\S+:(\d{1,5})', coordinator)
    if named and not (address and 0 < int(address[1]) < 2**16):
        raise UserError(
            f"config.parallel.coordinator='{coordinator}' must be HOST:PORT of process 0, with a port of 1 to 65535, "
            "'auto' or ''"
        )
    if not named and (count, process_id) != (1, 0):
        raise UserError(
            f'config.parallel.num_processes={count} and parallel.process_id={process_id} need '
            'parallel.coordinator=HOST:PORT'
        )
    if process_id >= count:
        raise UserError(
            f'config.parallel.process_id={process_id} is out of range for parallel.num_processes={count}; '
            f'use 0 .. {count - 1}'
        )
    if coordinator and flat['seeds']:
        raise UserError(
            f"config.parallel.coordinator='{coordinator}': the trials of config.seeds run in one process; give one seed"
        )
    if coordinator and (reason := indivisible(flat)):
        raise UserError(f"config.parallel.coordinator='{coordinator}': {reason}; use one process")
    if flat['parallel.devices'] % count:
        raise UserError(
            f'config.parallel.devices={flat["parallel.devices"]} cannot be shared equally by {count} processes; '
            f'use 0 for all, or a multiple of {count}'
        )
