"""Runs sides as processes, one at a time, and notes when each of their rounds is done."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers.catalog import Peer
from benchmarks.peers.task import MARK

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 4 * 3600  # seconds for one process


class Failed(Exception):
    """A side did not do its rounds; the message is the reason, in one line."""


class Place(NamedTuple):
    """Where a side runs."""

    python: Path
    folder: Path  # for whatever it leaves behind
    log: Path  # the file for what it prints
    cache: Path | None = None  # for compiled programs; None: the side is given none


def run(peer: Peer, task: Path, rounds: int, place: Place, weights: Path | None = None) -> list[float]:
    """Runs one process of a side; returns the seconds [rounds] from its start to the end of each of its rounds.

    Args:
      peer: the side.
      task: a folder that `problem.write` wrote.
      rounds: of that task.
      place: where to run.
      weights: the file for the final weights; None: they are not wanted.

    Raises:
      Failed: the process ended early, with an error or after `LIMIT` seconds.
    """
    for folder in (place.folder, place.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    words = [str(task), str(weights or ''), peer.mode]
    command = [str(place.python), '-m', f'benchmarks.peers.side_{peer.home}', *words]
    ends: list[float] = []
    with place.log.open('w') as log:
        start = time.monotonic()
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors='replace',
            env=_environment(place),
            cwd=place.folder,  # fluke and Ray leave files there
            start_new_session=True,
        ) as process:
            watchdog = threading.Timer(LIMIT, _end, [process.pid])
            watchdog.start()
            threading.Thread(target=_reap, args=[process], daemon=True).start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith(MARK):
                        ends.append(time.monotonic() - start)
                    else:
                        log.write(line)
                status = process.wait()
            finally:
                watchdog.cancel()
                _end(process.pid)
    if status or len(ends) < rounds:
        raise Failed(f'{len(ends)} of {rounds} rounds, exit status {status}: {_reason(place.log)}')
    return ends[:rounds]


def _environment(place: Place) -> dict[str, str]:
    """On the CPU, importing this checkout and otherwise only what is installed for the side."""
    changes = {'PYTHONPATH': str(ROOT), 'PYTHONUNBUFFERED': '1', 'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': ''}
    cache = 'JAX_COMPILATION_CACHE_DIR'
    inherited = {name: value for name, value in os.environ.items() if name != cache}
    return inherited | changes | ({cache: str(place.cache)} if place.cache else {})


def _reap(process: subprocess.Popen) -> None:
    """Ends what a finished process started and left, which might keep its output open."""
    process.wait()
    _end(process.pid)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _reason(log_file: Path) -> str:
    """The last line of a log that is not blank."""
    lines = [line for line in log_file.read_text(errors='replace').splitlines() if line.strip()]
    return (lines[-1].strip() if lines else 'nothing was printed')[:300] + f' ({log_file})'
