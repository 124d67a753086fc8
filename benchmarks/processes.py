"""Runs work in a separate process, so that memory is measured separately, and backends and failures are isolated."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import resource
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax.base.errors import UserError


class Side(NamedTuple):
    """Tasks by name, facts, and a function that returns the peak device memory in bytes (None on a CPU).

    A task runs once, to completion, and returns a number, which must be finite.
    """

    tasks: dict
    facts: dict[str, Any]
    device_memory: Any


class Failed(RuntimeError):
    """The other process failed or ended: `reason` is one line, `details` a traceback or empty."""

    def __init__(self, reason: str, details: str = ''):
        super().__init__(reason, details)
        self.reason, self.details = reason, details

    def __str__(self) -> str:
        return f'{self.reason}\n{self.details}'.rstrip()


def _serve(connection, build: Callable[[Any], Side], case: Any) -> None:
    """Answers each task name with its seconds, and None with the memory used, then exits."""
    with contextlib.suppress(OSError):  # not on Linux
        # When memory runs out, kill this process rather than another one.
        Path('/proc/self/oom_score_adj').write_text('1000')
    try:
        side = build(case)
        connection.send(side.facts)
        while task := connection.recv():
            start = time.perf_counter()
            value = side.tasks[task]()
            seconds = time.perf_counter() - start
            if not math.isfinite(value):
                raise FloatingPointError(f'{task}: the loss is {value}')
            connection.send(seconds)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
        connection.send({'peak_rss': peak, 'peak_device': side.device_memory()})
    except EOFError:
        return  # the other end is closed
    except UserError as error:
        connection.send(Failed(str(error)))
    except Exception as error:
        reason = ''.join(traceback.format_exception_only(error)).splitlines()[0]
        connection.send(Failed(reason, f'{build.__name__} failed:\n{traceback.format_exc().rstrip()}'))


class Remote:
    """A side in a new process, which ends with the `with` block."""

    def __init__(self, build: Callable[[Any], Side], case: Any):
        context = multiprocessing.get_context('spawn')
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, build, case))
        self.process.start()
        theirs.close()
        self.facts = self._answer()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_) -> None:
        self.connection.close()
        self.process.join()

    def time(self, task: str) -> float:
        """Runs a task once and returns its seconds."""
        return self._ask(task)

    def memory(self) -> dict[str, int | None]:
        """Peak memory of the process in bytes, excluding its child processes. No task can follow."""
        return self._ask(None)

    def _ask(self, task: str | None):
        with contextlib.suppress(OSError):  # process ended: `_answer` raises Failed
            self.connection.send(task)
        return self._answer()

    def _answer(self):
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            raise Failed(f'a process ended with status {self.process.exitcode}; out of memory?') from None
        if isinstance(answer, Exception):
            self.process.join()
            raise answer
        return answer


def backend() -> str:
    """'cpu' or 'gpu', as JAX reports it in another process, so that this one holds no device memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('spawn')) as pool:
        return 'cpu' if pool.submit(_platform).result() == 'cpu' else 'gpu'


def _platform() -> str:
    import jax

    return jax.default_backend()
