"""Executes the missing runs of a study or a sweep, and writes its report.

Each run is the process of one command, so that its memory is released, and a failing run affects no other. A study may
be killed at any moment: when restarted, it skips finished runs, and the first unfinished one resumes from its
checkpoint. A sweep is a study whose next run depends on those before it (`sweeps.search`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock
from tqdm import tqdm

import semisfl_jax
from semisfl_jax import runs
from semisfl_jax.config import load
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, count
from semisfl_jax.studies import collect, plan, report, spec, statistics, sweeps, tuned
from semisfl_jax.studies.plan import Job
from semisfl_jax.studies.spec import Study
from semisfl_jax.studies.sweeps import Sweep, search
from semisfl_jax.studies.sweeps import report as sweeps_report
from semisfl_jax.training import interrupt, outputs

LOGS = 'logs'
NEEDED = ('matplotlib', 'statsmodels', 'jinja2')
_POLL_SECONDS = 0.5
_SECONDS_BETWEEN_LINES = 60.0
_STOPPED = 'stopped; the same command resumes from there'


def run(
    definition: Study | Sweep,
    given: Mapping[str, Any],
    root: str = '',
    launcher: Path | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> Path:
    """Executes the missing runs of a study or a sweep, and writes its report; of a sweep whose trials have all ended,
    also tuned.json. Returns the folder of the report, below `root` or, if that is '', runs/studies or runs/sweeps.

    `given`: flat key -> value that the command line changes in all runs, or in the study or sweep (OWN_KEYS).
    `launcher`: a script that executes runs in place of `python -m semisfl_jax`. UserError: the study cannot be run, or
    some of its runs have failed, as the report says. Stopped: it was asked to stop; the report says what is missing.
    """
    is_sweep = isinstance(definition, Sweep)
    extra, needed = ('sweeps', (*NEEDED, 'optuna')) if is_sweep else ('plots', NEEDED)
    for name in needed:  # fail now rather than after hours of runs
        if importlib.util.find_spec(name) is None:
            raise UserError(f"reports of studies and sweeps need {name}: pip install -e '.[{extra}]'")
    if isinstance(definition, Sweep):
        definition = sweeps.with_given(definition, given)
        sweeps.check(definition)
    else:
        spec.check(definition)
        definition, given = _with_given(definition, given)
        plan.check(definition)
    home = file_io.expand_home(root or ('runs/sweeps' if is_sweep else 'runs/studies'), 'root')
    folder = home / plan.report_name(definition, given)
    with file_io.writing('--workdir'):
        for path in (home / LOGS, home / plan.RUNS, folder):
            path.mkdir(parents=True, exist_ok=True)
        try:
            lock = filelock.FileLock(folder / '.lock').acquire(blocking=False)
        except filelock.Timeout as error:
            raise UserError(f'another process is writing {folder}; wait for it, or stop it first') from error
    with lock, interrupt.listen() as request:
        session = Session(home, launcher, show, request)
        if isinstance(definition, Study):
            _run_study(definition, folder, session)
            return folder
        storage = search.open_journal(folder, definition)
        try:
            search.run(definition, storage, session)
        finally:
            with file_io.writing('--workdir'):
                sweeps_report.write(folder, definition, search.find(definition, storage), home)
        show(f'report in {folder}/report.md and report.html, settings in {folder}/{tuned.NAME}')
    return folder


def _run_study(study: Study, folder: Path, session: Session) -> None:
    home, show, jobs = session.home, session.show, plan.jobs(study)
    missing = [job for job in jobs if not session.finished(job)]
    show(f'{study.title}, scale {study.scale}: {count(len(jobs), "run")}, {len(jobs) - len(missing)} done')
    if missing and (line := statistics.power_beforehand(study, collect.find(study, home, {}))):
        show(line)
    faults: dict[str, str] = {}
    try:
        session.count = len(missing)
        for job in session.free_first(missing):
            if failed := session.make(job, job.command()):
                faults[job.name] = failed.line
            session.end(f'failed: {failed.line}' if failed else 'done')
    finally:
        found = collect.find(study, home, faults)
        with file_io.writing('--workdir'):
            report.write(folder, study, found, collect.budget(study, home))
    show(f'report in {folder}/report.md and report.html')
    if faults := {job.name: faults[job.name] for job in jobs if job.name in faults and not session.finished(job)}:
        many = f'{len(faults)} of {count(len(jobs), "run")} failed' if len(faults) < len(jobs) else 'no run succeeded'
        first = next(iter(faults.values()))
        raise UserError(f'{many}; the first failed with: {first}; the same command makes what is missing')


def _with_given(study: Study, given: Mapping[str, Any]) -> tuple[Study, dict[str, Any]]:
    """The study with everything that the command line changes, and the keys among it that are those of runs."""
    whole, of_runs = study, {key: value for key, value in given.items() if key not in spec.OWN_KEYS}
    of_runs = load.checked(of_runs, next(study.cells()).config)
    if given.get('study_rows') or given.get('study_columns'):
        study = study.part(given.get('study_rows', ()), given.get('study_columns', ()))
    source, beside = given.get('study_tuned', ''), given.get('study_untuned', False)
    if not source:
        if beside:
            raise UserError('config.study_untuned=True needs tuned settings beside it; write --config.study_tuned=FILE')
        return plan.with_given(study, of_runs), of_runs
    result = tuned.read(file_io.expand_home(source, 'config.study_tuned'))
    if both := sorted(of_runs.keys() & {key for method in result.methods for key in method.settings}):
        raise UserError(f'config.{both[0]} is among the settings of config.study_tuned={source}; leave one of them out')
    study = plan.with_given(tuned.apply(study, result, source, beside, whole), of_runs)
    tuned.check_seeds(study, result, source)
    return study, of_runs


class Failed(NamedTuple):
    """How a run failed."""

    line: str  # its error, without 'error: '
    status: int  # of its process, as `errors.exit_status` gives it
    log: Path  # its output


@dataclasses.dataclass
class Session:
    """Executes runs, one at a time, and says when each starts and ends, with the time left; its round once a minute."""

    home: Path  # folder of all runs' folder and of logs
    launcher: Path | None
    show: Callable[[str], None]
    request: interrupt.Request  # to stop, which is passed on to the run
    count: int = 0  # of the runs that are missing
    ended: int = 0
    start: float = dataclasses.field(default_factory=time.monotonic)

    def end(self, text: str) -> None:
        """Says how a run ended, and about how long the others take."""
        self.ended += 1
        seconds = (time.monotonic() - self.start) / self.ended * (self.count - self.ended)
        left = f'  about {tqdm.format_interval(seconds)} left' if self.ended < self.count else ''
        self.show(f'    {text}{left}')

    def finished(self, job: Job) -> bool:
        """Whether a run has all its rounds."""
        return outputs.finished(self.home / plan.RUNS / job.name, job.rounds) is not None

    def free_first(self, jobs: Sequence[Job]) -> Iterator[Job]:
        """`jobs`, each time the first in whose folder no other process is, so that studies divide runs they share."""
        left = list(jobs)
        while left:
            free = (
                job for job in left if not any(outputs.busy(self.home / plan.RUNS / each.name) for each in job.needed)
            )
            job = next(free, left[0])
            left.remove(job)
            yield job

    def make(self, job: Job, text: str, enough: Callable[[], int] = lambda: 0) -> Failed | None:
        """Executes a run, announced by `text`, unless it is finished; waits for another process that runs it. Once
        `enough`, called now and then, is not 0, the run is asked to stop after its round.

        Returns how it failed, None if it succeeded or was stopped because of `enough`. Stopped: on a request.
        """
        folder, log = self.home / plan.RUNS / job.name, self.home / LOGS / f'{job.name}.log'
        self.show(f'[{self.ended + 1}/{self.count}] {text}')
        for needed in job.needed:
            self._wait(self.home / plan.RUNS / needed.name)
        if enough() or self.finished(job):
            return None
        machine, before = collect.this_machine(), _processor_seconds()
        collect.record_provenance(folder, machine)
        status = self._execute(job, folder, log, enough)
        collect.record_provenance(folder, machine, _processor_seconds() - before)
        if self.request.signum and not self.finished(job):
            raise interrupt.Stopped(_STOPPED, self.request.signum)
        self._wait(folder)  # another study or sweep may have been earlier
        if status == 0 or self.finished(job) or enough():
            return None
        lines = [line for line in log.read_text(errors='replace').splitlines() if line.strip()]
        errors = [line.removeprefix('error: ') for line in lines if line.startswith('error: ')]
        unknown = f'exit status {status} ({lines[-1] if lines else "no output"})'
        return Failed(errors[-1] if errors else unknown, status, log)

    def _execute(self, job: Job, folder: Path, log: Path, enough: Callable[[], int]) -> int:
        """Executes a run as a process, and returns its exit status."""
        program = [str(self.launcher)] if self.launcher else ['-m', 'semisfl_jax']
        config = job.base if plan.is_path(job.base) else load.CONFIGS / f'{job.base}.py'
        options = job.options(root=folder.parent)
        command = [sys.executable, *program, f'--config={config}', f'--workdir={folder}', *options]
        paths = [str(Path(semisfl_jax.__file__).parents[1]), os.environ.get('PYTHONPATH', '')]  # this package first
        environment = os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, paths))}
        with log.open('w') as out:
            # In its own session: Ctrl-C reaches only this process, which forwards it once.
            child = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=environment
            )
            asked, said = False, time.monotonic()
            while child.poll() is None:
                if not asked and (self.request.signum or enough()):
                    child.send_signal(self.request.signum or signal.SIGTERM)
                    asked = True
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_SECONDS)
                if time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
                    metrics, said = runs.trials(folder)[0] / 'metrics.jsonl', time.monotonic()
                    done = metrics.read_bytes().count(b'\n') if metrics.exists() else 0
                    self.show(f'    round {done} of {job.rounds}')
        return child.returncode

    def _wait(self, folder: Path) -> None:
        """Waits for another process in `folder`: of another study, or of one that was killed."""
        if outputs.busy(folder):
            self.show(f'waiting for the process that runs in {folder}')
        while outputs.busy(folder):
            if self.request.signum:
                raise interrupt.Stopped(_STOPPED, self.request.signum)
            time.sleep(_POLL_SECONDS)


def _processor_seconds() -> float:
    """What all processes took that this one has started and that have ended."""
    return sum(os.times()[2:4])
