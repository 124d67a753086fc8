"""Executes the missing runs of a study, and writes its report.

Each run is the process of one command, so that its memory is released, and a failing run affects no other. A study may
be killed at any moment: when restarted, it skips finished runs, and the first unfinished one resumes from its
checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import semisfl_jax
from semisfl_jax.config import command_line
from semisfl_jax.errors import UserError
from semisfl_jax.plots import style
from semisfl_jax.studies import collect, plan, provenance, report
from semisfl_jax.studies.board import Board
from semisfl_jax.studies.plan import Job
from semisfl_jax.studies.spec import Study
from semisfl_jax.training import interrupt, workdir

ROOT = 'runs/studies'
LOGS = 'logs'
_POLL_SECONDS = 0.5


def run(
    study: Study,
    given: Mapping[str, Any],
    root: str,
    launcher: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Executes the missing runs of a study, and writes its report.

    Args:
      study: as defined in its file.
      given: flat key -> value that the command line changes in all runs.
      root: folder of all studies; '' means ROOT.
      launcher: a script that executes runs in place of `python -m semisfl_jax`.
      say: called with each line that tells of progress; the command prints them.

    Returns:
      The folder of the report.

    Raises:
      UserError: a mistake in the study or its changes, a folder that is not writable, no matplotlib, or no run
        succeeded.
      Stopped: the study was asked to stop; the report says what is missing.
    """
    style.matplotlib()  # fail now rather than after hours of runs
    study = plan.with_given(study, given)
    plan.check(study)
    home, jobs = Path(root or ROOT), plan.jobs(study)
    folder = home / plan.report_name(study, given)
    try:
        for path in (home / LOGS, home / plan.RUNS, folder):
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'cannot write {error.filename}: {error.strerror}; choose another --workdir') from error

    missing = [job for job in jobs if not _finished(home, job)]
    say(f'{study.title}, scale {study.scale}: {len(jobs)} runs, {len(jobs) - len(missing)} of them done')
    faults: dict[str, str] = {}
    try:
        with interrupt.listen() as request, Board(home / plan.RUNS, missing, say) as board:
            entry = provenance.here() if missing else {}
            for job in missing:
                _wait(home / plan.RUNS / job.name, request, say)
                if not _finished(home, job):
                    board.start(job)
                    if fault := _make(home, job, launcher, entry, board, request):
                        faults[job.name] = fault
                board.end(job, faults.get(job.name, ''))
    finally:
        results = collect.find(study, home, faults)
        report.write(folder, study, results)
    say(f'report in {folder}/report.md and report.html')
    if faults and not any(cell.runs for cell in results.values()):
        raise UserError(f'no run succeeded; the first failed with: {next(iter(faults.values()))}')
    return folder


def _finished(home: Path, job: Job) -> bool:
    return workdir.finished(home / plan.RUNS / job.name, job.rounds) is not None


def _wait(folder: Path, request: interrupt.Request, say: Callable[[str], None]) -> None:
    """Waits for another process in `folder`: of another study, or an orphan whose study was killed."""
    announced = False
    while _busy(folder):
        if request.signum:
            raise interrupt.Stopped('stopped; the same command resumes from there', request.signum)
        if not announced:
            say(f'waiting for the process that runs in {folder}')
            announced = True
        time.sleep(_POLL_SECONDS)


def _busy(folder: Path) -> bool:
    try:
        with (folder / '.lock').open('r+') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:  # nothing there yet
        return False


def _make(
    home: Path, job: Job, launcher: Path | None, entry: dict[str, str], board: Board, request: interrupt.Request
) -> str:
    """Executes a run; returns the error line with which it failed, '' if it succeeded.

    Raises:
      Stopped: the study was asked to stop; the run has saved its state.
    """
    folder, log = home / plan.RUNS / job.name, home / LOGS / f'{job.name}.log'
    program = [str(launcher)] if launcher else ['-m', 'semisfl_jax']
    config = command_line.CONFIGS / f'{job.base}.py'
    command = [sys.executable, *program, f'--config={config}', f'--workdir={folder}', *job.options()]
    paths = [str(Path(semisfl_jax.__file__).parents[1]), os.environ.get('PYTHONPATH', '')]  # this package, not another
    environment = os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, paths))}
    try:
        provenance.note(folder, entry)
    except UserError as error:
        return str(error)
    with log.open('w') as out:
        # In its own session: Ctrl-C reaches only this process, which forwards it once.
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
        passed_on = False
        while child.poll() is None:
            if request.signum and not passed_on:
                child.send_signal(request.signum)
                passed_on = True
            time.sleep(_POLL_SECONDS)
            board.look()
    if request.signum and not _finished(home, job):
        raise interrupt.Stopped('stopped; the same command resumes from there', request.signum)
    if child.returncode == 0:
        return ''
    lines = [line for line in log.read_text(errors='replace').splitlines() if line.strip()]
    errors = [line.removeprefix('error: ') for line in lines if line.startswith('error: ')]
    return errors[-1] if errors else f'exit status {child.returncode} ({lines[-1] if lines else "no output"})'
