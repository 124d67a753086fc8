"""Executes a run as the process of one command, so that its memory is released, and a failing run affects no other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

import semisfl_jax
from semisfl_jax import runs
from semisfl_jax.config import command_line
from semisfl_jax.core import atomic_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.studies import collect, plan
from semisfl_jax.studies.plan import Job
from semisfl_jax.training import interrupt, workdir

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
    return workdir.finished(home / plan.RUNS / job.name, job.rounds) is not None


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
        collect.record_provenance(folder, entry)
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


# The progress of a study or sweep: a line for every finished run, and the remaining time of all runs.

_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_LOOKS = 2.0


class Board:
    """Counts rounds, those of a run of R seeds R times; finished and failed runs count as done."""

    def __init__(self, work: Mapping[str, int], made: Callable[[str], int], say: Callable[[str], None]):
        """`work`: rounds of each run, by name; `made`: name -> how many of them are there; `say` prints a line."""
        self._work, self._made, self._print = dict(work), made, say
        self._total = sum(work.values())
        self._rounds = {name: self._count(name) for name in work}  # completed by each run, as of the last check
        self._before = sum(self._rounds.values())
        self._ended = 0
        self._current = ''
        self._start = self._last_line = self._last_look = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and work:
            self._bar = tqdm(total=self._total, initial=self._before, unit='round', dynamic_ncols=True, leave=False)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def start(self, name: str, text: str) -> None:
        """Announces that a run starts."""
        self._current = name
        there = self._count(name)  # made before, but not known of until now
        self._before += there - self._rounds[name]
        self._rounds[name] = there
        self._say(f'[{self._ended + 1}/{len(self._work)}] {text}')

    def end(self, name: str, text: str, unmade: int = 0) -> None:
        """Announces that a run has ended, and how. All its rounds count as done; `unmade` of them nobody made, so that
        they say nothing about how fast the others will be."""
        self._ended += 1
        self._before += unmade
        self._rounds[name] = self._work[name]
        self._say(f'    {text}  {self._left()}')

    def look(self) -> None:
        """Shows the progress of the current run periodically."""
        now, name = time.monotonic(), self._current
        if not name or now - self._last_look < _SECONDS_BETWEEN_LOOKS:
            return
        self._last_look = now
        self._rounds[name] = self._count(name)
        if self._bar is not None:
            self._bar.n = sum(self._rounds.values())
            self._bar.refresh()
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._say(f'    round {self._rounds[name]} of {self._work[name]}  {self._left()}')

    def _left(self) -> str:
        done = sum(self._rounds.values())
        completed = done - self._before
        if done >= self._total or completed <= 0:
            return ''
        left = (time.monotonic() - self._start) / completed * (self._total - done)
        return f'{100 * done // self._total} % of all rounds, about {tqdm.format_interval(left)} left'

    def _say(self, text: str) -> None:
        self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.n = sum(self._rounds.values())
            tqdm.write(text.rstrip())
        else:
            self._print(text.rstrip())

    def _count(self, name: str) -> int:
        return min(self._made(name), self._work[name])


def rounds_done(folder: Path) -> int:
    """Rounds completed in the folder of a run: lines in the metrics.jsonl of all its seeds."""
    count = 0
    for trial in runs.trials(folder):
        try:
            count += atomic_io.content(trial / 'metrics.jsonl').count(b'\n')
        except UserError:  # not started
            continue
    return count
