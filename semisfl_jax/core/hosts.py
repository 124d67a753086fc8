"""Several processes that compute one run, on one host or on many: joining, communicating and failing together.

Every process builds the same experiment and computes its part of each round. Only process 0 accesses the folder of the
run and the terminal, so the folder need not be shared. It broadcasts what it reads there, and an error in one process
ends all of them. If a process dies, JAX's heartbeat ends the others within about a minute.

With one process, the usual case, everything here is a no-op.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from semisfl_jax.core.errors import UserError

Result = TypeVar('Result')

AUTO = 'auto'
_SECONDS = 60  # timeout for the heartbeat of a process, and for all processes to shut down
SECONDS_TO_MEET = 300  # timeout for all processes to join: JAX then aborts
_FAULT_BYTES = 1000


def join(coordinator: str, num_processes: int, process_id: int) -> None:
    """Joins the other processes; must precede any other use of JAX in a run.

    `coordinator` is '' for a run of one process, 'HOST:PORT' of process 0, which needs the other two arguments, or
    'auto' to detect Slurm, MPI, Kubernetes or a Cloud TPU.

    Raises:
      UserError: no cluster was detected, the host of process 0 is unknown, or JAX has been used before. If a process
        does not come, JAX aborts this one after SECONDS_TO_MEET.
    """
    if not coordinator or jax.distributed.is_initialized():
        return
    named: dict[str, Any] = {}
    if coordinator != AUTO:
        _check_host(coordinator)
        named = {'coordinator_address': coordinator, 'num_processes': num_processes, 'process_id': process_id}
    try:
        jax.distributed.initialize(
            **named,
            initialization_timeout=SECONDS_TO_MEET,
            heartbeat_timeout_seconds=_SECONDS,
            shutdown_timeout_seconds=_SECONDS,
        )
    except (RuntimeError, ValueError) as error:  # from JAX: nothing detected, used before, no answer
        hint = '; give HOST:PORT, num_processes and process_id' if coordinator == AUTO else ''
        what = f'no connection to the other processes ({error}){hint}'
        raise UserError(f"config.parallel.coordinator='{coordinator}': {what}") from error


def _check_host(coordinator: str) -> None:
    """Raises UserError if the host of HOST:PORT has no address: JAX would try it until it gives up."""
    host, _, port = coordinator.rpartition(':')
    try:
        socket.getaddrinfo(host.strip('[]'), int(port))
    except OSError as error:
        what = f"the host '{host}' is unknown ({error.strerror}); give the name or address of process 0"
        raise UserError(f"config.parallel.coordinator='{coordinator}': {what}") from error


def first() -> bool:
    """Whether this is process 0, the one that writes."""
    return jax.process_index() == 0


@contextmanager
def together() -> Iterator[None]:
    """A block that every process runs, without JAX programs in it: a UserError or OSError in one ends all of them.

    Raises:
      UserError, OSError: as raised by the block.
      UserError: the block failed in another process.
    """
    local_error = None
    try:
        yield
    except (UserError, OSError) as error:
        local_error = error
    faults = _gather(str(local_error or ''))
    if local_error:
        raise local_error
    for index, fault in enumerate(faults):
        if fault:
            raise UserError(fault if index == 0 else f'process {index}: {fault}')


def on_first(function: Callable[[], Result]) -> Result | None:
    """Calls `function` in process 0; returns its result there and None elsewhere. A UserError is raised in all."""
    result = None
    with together():
        if first():
            result = function()
    return result


def from_first(function: Callable[[], Result]) -> Result:
    """Calls `function` in process 0; returns its (picklable) result in all processes. A UserError is raised in all."""
    if jax.process_count() == 1:
        return function()
    result = on_first(function)
    content = np.frombuffer(pickle.dumps(result), np.uint8)
    size = np.array(divmod(len(content), 2**30), np.int32)
    high, low = multihost_utils.broadcast_one_to_all(size).tolist()
    if not first():
        content = np.zeros(high * 2**30 + low, np.uint8)
    return pickle.loads(multihost_utils.broadcast_one_to_all(content).tobytes())


def check_same(what: str, value: Any) -> None:
    """Makes sure that all processes have the same value.

    Raises:
      UserError: in all processes, if the value of one differs from that of process 0.
    """
    expected = from_first(lambda: value)
    with together():
        if value != expected:
            raise UserError(f'{what} differ from those of process 0; give all processes the same')


def largest(number: int) -> int:
    """The largest `number` of all processes."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def _gather(text: str) -> list[str]:
    """The texts of all processes, truncated if long."""
    if jax.process_count() == 1:
        return [text]
    content = np.zeros(_FAULT_BYTES, np.uint8)
    encoded = np.frombuffer(text.encode()[:_FAULT_BYTES], np.uint8)
    content[: len(encoded)] = encoded
    rows = multihost_utils.process_allgather(content)
    return [bytes(row).rstrip(b'\0').decode(errors='ignore') for row in rows]
