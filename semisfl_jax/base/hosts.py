"""Lets several processes compute one run, on one host or many: joining, communicating and failing together.

Every process builds the same experiment and computes its part of each round. Only process 0 accesses the folder of the
run and the terminal, so the folder need not be shared. It broadcasts what it reads there, and an error in one process
ends all of them. If a process dies, its connections close, which ends the others at once; if its host dies, JAX's
heartbeat ends them within about a minute.

With one process, the usual case, everything here is a no-op.
"""

import atexit
import ipaddress
import os
import pickle
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from semisfl_jax.base.errors import UserError

Result = TypeVar('Result')

AUTO = 'auto'
_SECONDS = 60  # timeout for the heartbeat of a process, and for all processes to shut down
SECONDS_TO_MEET = 300  # timeout for all processes to join
_FAULT_BYTES = 1000
_SECONDS_TO_NOTICE = 5  # that an error of JAX waits for the news that another process has died


def join(coordinator: str, num_processes: int, process_id: int) -> None:
    """Joins the other processes; must precede any other use of JAX in a run.

    If a process is missing after SECONDS_TO_MEET, this one ends.

    Args:
      coordinator: '' for a run of one process; 'HOST:PORT' of process 0; or 'auto' to detect Slurm, MPI, Kubernetes or
        a Cloud TPU.
      num_processes: needed with HOST:PORT.
      process_id: likewise.

    Raises:
      UserError: no cluster was detected, the host of process 0 is unknown, or JAX has been used before.
    """
    if not coordinator or jax.distributed.is_initialized():
        return
    named: dict[str, Any] = {}
    local = False
    if coordinator != AUTO:
        named = {'coordinator_address': coordinator, 'num_processes': num_processes, 'process_id': process_id}
        local = all(ipaddress.ip_address(address).is_loopback for address in _addresses(coordinator))
        if local:
            named['coordinator_bind_address'] = coordinator  # or JAX would listen on all addresses of this host
    late = f'not all processes came within {SECONDS_TO_MEET} s; start all of them, with the same coordinator'
    alone = threading.Timer(SECONDS_TO_MEET, _end, [f"config.parallel.coordinator='{coordinator}': {late}"])
    alone.daemon = True
    alone.start()
    try:
        jax.distributed.initialize(
            **named,
            initialization_timeout=2 * SECONDS_TO_MEET,  # never reached: JAX would abort with a native stack
            heartbeat_timeout_seconds=_SECONDS,
            shutdown_timeout_seconds=_SECONDS,
        )
    except (RuntimeError, ValueError) as error:  # from JAX: nothing detected, used before, no answer
        hint = '; give HOST:PORT, num_processes and process_id' if coordinator == AUTO else ''
        what = f'no connection to the other processes ({error}){hint}'
        raise UserError(f"config.parallel.coordinator='{coordinator}': {what}") from error
    finally:
        alone.cancel()
    _watch('localhost' if local else coordinator.rpartition(':')[0].strip('[]'))


def _end(message: str) -> None:
    """Prints a message and ends this process at once: its main thread waits for another one and runs no Python."""
    sys.stderr.write(f'error: {message}\n')  # at once: a line that JAX logs meanwhile would part the words of a print
    sys.stderr.flush()
    os._exit(UserError.status)


def _watch(host: str) -> None:
    """Connects all processes with process 0, on `host` ('' if unknown).

    A process whose connection closes without a goodbye has died, which ends the process at the other end. If no
    connection can be made, JAX's heartbeat remains.
    """
    server = socket.create_server((host if host == 'localhost' else '', 0)) if first() else None
    port, token, name = from_first(
        lambda: (server.getsockname()[1] if server else 0, secrets.token_hex(), socket.gethostname())
    )
    connections: list[socket.socket] = []

    def watch(connection: socket.socket, who: str) -> None:
        connections.append(connection)
        with suppress(OSError):
            if connection.recv(1):
                return
        _end(f'{who} has ended, and this process with it; the same command resumes from the last checkpoint')

    def accept(server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            received, _, index = connection.recv(100).decode(errors='replace').partition(' ')
            if received == token:  # otherwise a stranger
                threading.Thread(target=watch, args=(connection, f'process {index}'), daemon=True).start()

    def wait(kind: type[BaseException], *error: Any, show: Callable[..., Any] = sys.excepthook) -> None:
        if issubclass(kind, jax.errors.JaxRuntimeError):  # perhaps because another has died, which `watch` then says
            time.sleep(_SECONDS_TO_NOTICE)
        show(kind, *error)

    def goodbye() -> None:
        if hasattr(sys, 'last_value'):  # ends with a traceback: the others wait for it, and JAX would wait for them
            sys.stdout.flush()
            os._exit(1)
        for connection in connections:
            with suppress(OSError):
                connection.send(b'.')

    if server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
    else:
        with suppress(OSError):
            connection = socket.create_connection((host or name, port), timeout=10)
            connection.settimeout(None)
            connection.send(f'{token} {jax.process_index()}'.encode())
            threading.Thread(target=watch, args=(connection, 'process 0'), daemon=True).start()
    sys.excepthook = wait
    atexit.register(goodbye)  # runs before JAX's own, which waits for the others


def _addresses(coordinator: str) -> set[str]:
    """Resolves the host of HOST:PORT; raises UserError if it is unknown, which JAX would retry until it gives up."""
    host, _, port = coordinator.rpartition(':')
    try:
        return {str(address[4][0]) for address in socket.getaddrinfo(host.strip('[]'), int(port))}
    except OSError as error:
        what = f"the host '{host}' is unknown ({error.strerror}); give the name or address of process 0"
        raise UserError(f"config.parallel.coordinator='{coordinator}': {what}") from error


def first() -> bool:
    """Returns whether this is process 0, the one that writes."""
    return jax.process_index() == 0


@contextmanager
def together() -> Iterator[None]:
    """Runs a block in every process, without JAX programs in it: a UserError or OSError in one ends all of them.

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
    """Calls `function` in process 0; returns its result there and None elsewhere. All raise its UserError."""
    result = None
    with together():
        if first():
            result = function()
    return result


def from_first(function: Callable[[], Result]) -> Result:
    """Calls `function` in process 0; returns its (picklable) result in all processes. All raise its UserError."""
    if jax.process_count() == 1:
        return function()
    result = on_first(function)
    content = np.frombuffer(pickle.dumps(result), np.uint8)
    size = np.array(divmod(len(content), 2**30), np.int32)
    high, low = multihost_utils.broadcast_one_to_all(size).tolist()
    if not first():
        content = np.zeros(high * 2**30 + low, np.uint8)
    return pickle.loads(multihost_utils.broadcast_one_to_all(content).tobytes())


def check_same(what: str, values: Sequence[Any]) -> None:
    """Checks that all processes have the same values.

    Args:
      what: names the values in the message, a plural.
      values: those of this process.

    Raises:
      UserError: in all processes, if a value of one differs from that of process 0.
    """
    expected = from_first(lambda: values)
    with together():
        for value, other in zip(values, expected, strict=True):
            if value != other:
                raise UserError(f'{what} differ from those of process 0 ({value}, not {other}); make them the same')


def largest(numbers: Sequence[int]) -> list[int]:
    """Returns for each of some numbers the largest of all processes."""
    return np.max(multihost_utils.process_allgather(np.array([numbers], np.int32)), axis=0).ravel().tolist()


def _gather(text: str) -> list[str]:
    """Gathers the texts of all processes, truncated if long."""
    if jax.process_count() == 1:
        return [text]
    content = np.zeros(_FAULT_BYTES, np.uint8)
    encoded = np.frombuffer(text.encode()[:_FAULT_BYTES], np.uint8)
    content[: len(encoded)] = encoded
    rows = multihost_utils.process_allgather(content)
    return [bytes(row).rstrip(b'\0').decode(errors='ignore') for row in rows]
