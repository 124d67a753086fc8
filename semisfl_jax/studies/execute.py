"""Executes a run as the process of one command, so that its memory is released, and a failing run affects no other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import semisfl_jax
from semisfl_jax.config import command_line
from semisfl_jax.core import atomic_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.studies import plan, provenance
from semisfl_jax.studies.plan import Job
from semisfl_jax.training import interrupt, outputs

LOGS = 'logs'
_POLL_SECONDS = 0.5


class Failed(NamedTuple):
    """How a run failed."""

    line: str  # its error, without 'error: '
    status: int  # of its process, as `errors.exit_status` gives it


def make_folders(home: Path, folder: Path) -> None:
    """Creates the folders of logs and runs in `home`, and that of a report, `folder`.

    Raises:
      UserError: one is not writable.
    """
    with atomic_io.writing('--workdir'):
        for path in (home / LOGS, home / plan.RUNS, folder):
            path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Locks other processes out of the folder of a report for the duration of the block.

    Raises:
      UserError: another process is there.
    """
    with (folder / '.lock').open('w') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f'another process is writing {folder}; wait for it, or stop it first') from error
        yield


def finished(home: Path, job: Job) -> bool:
    """Whether a run has all its rounds."""
    return outputs.finished(home / plan.RUNS / job.name, job.rounds) is not None


def wait(folder: Path, request: interrupt.Request, say: Callable[[str], None]) -> None:
    """Waits for another process in `folder`: of another study, or an orphan whose study was killed."""
    announced = False
    while busy(folder):
        if request.signum:
            raise interrupt.Stopped('stopped; the same command resumes from there', request.signum)
        if not announced:
            say(f'waiting for the process that runs in {folder}')
            announced = True
        time.sleep(_POLL_SECONDS)


def busy(folder: Path) -> bool:
    """Whether another process runs in a folder."""
    try:
        with (folder / '.lock').open('r+') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:  # nothing there yet
        return False


def make(
    home: Path,
    job: Job,
    launcher: Path | None,
    entry: dict[str, str],
    request: interrupt.Request,
    look: Callable[[], None],
    say: Callable[[str], None],
    enough: Callable[[], bool] = lambda: False,
) -> Failed | None:
    """Executes a run.

    Args:
      home: folder of all runs' folder and of logs.
      job: the run.
      launcher: a script that executes runs in place of `python -m semisfl_jax`.
      entry: this machine and commit, for the run's provenance.
      request: to stop, which is passed on to the run.
      look: called now and then.
      say: called with a line if another process turns out to be in the folder of the run, which is then waited for.
      enough: called likewise; once it is true, the run is asked to stop after its round.

    Returns:
      How it failed; None if it succeeded or was stopped because of `enough`.

    Raises:
      Stopped: on `request`; the run has saved its state.
    """
    folder, log = home / plan.RUNS / job.name, home / LOGS / f'{job.name}.log'
    program = [str(launcher)] if launcher else ['-m', 'semisfl_jax']
    config = job.base if plan.is_path(job.base) else command_line.CONFIGS / f'{job.base}.py'
    command = [sys.executable, *program, f'--config={config}', f'--workdir={folder}', *job.options()]
    paths = [str(Path(semisfl_jax.__file__).parents[1]), os.environ.get('PYTHONPATH', '')]  # this package, not another
    environment = os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, paths))}
    try:
        provenance.note(folder, entry)
    except UserError as error:
        return Failed(str(error), error.status)
    with log.open('w') as out:
        # In its own session: Ctrl-C reaches only this process, which forwards it once.
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
        passed_on = stopped = False
        while child.poll() is None:
            if request.signum and not passed_on:
                child.send_signal(request.signum)
                passed_on = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_SECONDS)
            look()
            if not passed_on and enough():
                child.send_signal(signal.SIGTERM)
                passed_on = stopped = True
    if request.signum and not finished(home, job):
        raise interrupt.Stopped('stopped; the same command resumes from there', request.signum)
    if child.returncode == 0 or stopped:
        return None
    wait(folder, request, say)  # another study or sweep may have been earlier
    if finished(home, job) or enough():
        return None
    lines = [line for line in log.read_text(errors='replace').splitlines() if line.strip()]
    errors = [line.removeprefix('error: ') for line in lines if line.startswith('error: ')]
    unknown = f'exit status {child.returncode} ({lines[-1] if lines else "no output"})'
    return Failed(errors[-1] if errors else unknown, child.returncode)
