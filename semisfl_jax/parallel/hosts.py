"""Several processes that compute one run, on one host or on many: who they are, and how they stay together.

Every process builds the same experiment and computes its part of each round. Process 0 alone touches the folder of the
run and the terminal, so the folder need not be shared. What it finds there it tells the others, and a mistake that one
process finds ends all of them. A process that dies ends the others, too, within about a minute: JAX's own watch sees
to that.

With one process, which is the rule, everything here does nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from semisfl_jax.errors import UserError

Result = TypeVar('Result')

AUTO = 'auto'
_SECONDS = 60  # until a process that is gone, or waits for others to end, is given up
_SECONDS_TO_MEET = 300  # until a process that does not come is given up: JAX then aborts
_FAULT_BYTES = 1000


def join(coordinator: str, num_processes: int, process_id: int) -> None:
    """Joins the other processes; the first thing a run does with JAX.

    Args:
      coordinator: '' for a run of one process, 'HOST:PORT' of process 0, or 'auto', as Slurm, MPI, Kubernetes or a
        Cloud TPU tell.
      num_processes, process_id: with 'HOST:PORT' alone.

    Raises:
      UserError: nothing tells about processes, process 0 does not answer, or JAX has been used before.
    """
    if not coordinator or jax.distributed.is_initialized():
        return
    named = {}
    if coordinator != AUTO:
        named = {'coordinator_address': coordinator, 'num_processes': num_processes, 'process_id': process_id}
    try:
        jax.distributed.initialize(
            **named,
            initialization_timeout=_SECONDS_TO_MEET,
            heartbeat_timeout_seconds=_SECONDS,
            shutdown_timeout_seconds=_SECONDS,
        )
    except (RuntimeError, ValueError) as error:  # JAX: nothing detected, used before, no answer
        hint = '; give HOST:PORT, num_processes and process_id' if coordinator == AUTO else ''
        raise UserError(
            f"config.parallel.coordinator='{coordinator}': no connection to the other processes ({error}){hint}"
        ) from error


def first() -> bool:
    """Whether this is the process that writes."""
    return jax.process_index() == 0


def say(*words: str, **options) -> None:
    """Prints, in process 0."""
    if first():
        print(*words, **options)


@contextmanager
def together() -> Iterator[None]:
    """A block that every process runs, without JAX programs in it: a mistake or a full disk in one ends all of them.

    Raises:
      UserError, OSError: as the block did.
      UserError: the block failed in another process.
    """
    own = None
    try:
        yield
    except (UserError, OSError) as error:
        own = error
    faults = _gather(str(own or ''))
    if own:
        raise own
    for index, fault in enumerate(faults):
        if fault:
            raise UserError(fault if index == 0 else f'process {index}: {fault}')


def on_first(function: Callable[[], Result]) -> Result | None:
    """Calls `function` in process 0, and gives its result there and None elsewhere. A UserError is raised in all."""
    result = None
    with together():
        if first():
            result = function()
    return result


def from_first(function: Callable[[], Result]) -> Result:
    """Calls `function` in process 0, and gives its result, any that pickle takes, to all; a UserError likewise."""
    result = on_first(function)
    if jax.process_count() == 1:
        return result
    content = np.frombuffer(pickle.dumps(result), np.uint8)
    size = np.array(divmod(len(content), 2**30), np.int32)
    high, low = multihost_utils.broadcast_one_to_all(size).tolist()
    if not first():
        content = np.zeros(high * 2**30 + low, np.uint8)
    return pickle.loads(multihost_utils.broadcast_one_to_all(content).tobytes())


def check_same(what: str, value: Any) -> None:
    """Makes sure that all processes have the same value.

    Raises:
      UserError: one has another than process 0; in all processes.
    """
    expected = from_first(lambda: value)
    with together():
        if value != expected:
            raise UserError(f'{what} are not those of process 0; give all processes the same')


def largest(number: int) -> int:
    """The largest of the numbers that the processes have."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))


def _gather(text: str) -> list[str]:
    """The texts of all processes, long ones cut."""
    if jax.process_count() == 1:
        return [text]
    content = np.zeros(_FAULT_BYTES, np.uint8)
    encoded = np.frombuffer(text.encode()[:_FAULT_BYTES], np.uint8)
    content[: len(encoded)] = encoded
    rows = multihost_utils.process_allgather(content)
    return [bytes(row).rstrip(b'\0').decode(errors='ignore') for row in rows]
