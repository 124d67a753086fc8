"""Executes the missing jobs of a plan, of a study or of a sweep, and writes its report.

Jobs that can be one program are one process, so that its memory is released, and a failing one affects no other. Who
starts a job claims it before, so that several processes, of one study or of several that share jobs, divide them. All
may be killed at any moment: when restarted, finished jobs are skipped, and unfinished ones resume from their
checkpoints.
"""

import contextlib
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

import semisfl_jax as sfl
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import STOPPED, Diverged, UserError, count, install
from semisfl_jax.lab.launcher import Launcher, Started
from semisfl_jax.lab.studies import plan as plans
from semisfl_jax.lab.studies import report, results, search, statistics, sweep_report, tuned
from semisfl_jax.lab.studies.plan import CellJob, Failed, Job, Plan, Task
from semisfl_jax.lab.studies.spec import Study
from semisfl_jax.lab.studies.sweeps import Sweep

LOGS, CLAIM = 'logs', '.claim'
NEEDED = ('matplotlib', 'statsmodels', 'markdown_it')
_POLL_SECONDS = 0.5
_SECONDS_BETWEEN_LINES = 60.0


class Work(NamedTuple):
    """A plan as it is executed."""

    head: list[str]  # lines that announce it
    left: Callable[[], int]  # number of jobs that are missing
    tasks: Callable[[], list[Task]]  # those among them that can be made now
    write: Callable[[], str]  # writes the report, and returns where it is
    fault: Callable[[], str]  # why the report lacks something, '' if it does not; once it is written


class Jobs(NamedTuple):
    """Jobs that are all known beforehand."""

    jobs: Sequence[Job | CellJob]
    runs: Path  # folder of their folders
    faults: dict[str, str]  # errors of those that have failed, by name

    def missing(self) -> list[Job | CellJob]:
        """Lists the jobs that have neither finished nor failed."""
        return [job for job in self.jobs if job.name not in self.faults and not _finished(self.runs, job)]

    def left(self) -> int:
        """Counts them."""
        return len(self.missing())

    def tasks(self) -> list[Task]:
        """Lists those among them that can be made now."""
        due = self.missing()
        names = {job.name for job in due}
        ready = [job for job in due if not job.first or job.first.name not in names]
        return [Task(job, job.title, partial(self._record, job)) for job in ready]

    def _record(self, job: Job | CellJob, failed: Failed | None) -> str:
        if failed:
            self.faults[job.name] = failed.line
        return f'failed: {failed.line}' if failed else job.outcome(self.runs)


def run(
    definition: Study | Sweep,
    changes: Mapping[str, Any],
    root: str = '',
    program: Path | None = None,
    show: Callable[[str], None] = lambda line: None,
    launcher: Launcher | None = None,
    share: int = 1,
) -> Path:
    """Executes the missing runs of a study or a sweep, and writes its report; of a sweep that is done, also tuned.json.

    Args:
      definition: the study or sweep.
      changes: what the command line changes, by dotted key.
      root: folder of all that is written; '': runs/studies or runs/sweeps.
      program: a script that executes runs in place of `python -m semisfl_jax`.
      show: takes a line on what is going on.
      launcher: starts the jobs that execute the runs; None: this process does.
      share: number of processes that divide the runs; one takes so small a part of them at a time.

    Returns:
      The folder of the report, below `root`.

    Raises:
      UserError: the study or sweep cannot be run, or some of its runs have failed, as the report says.
      Stopped: it was asked to stop; the report says what is missing.
    """
    is_sweep = isinstance(definition, Sweep)
    extra, needed = ('sweeps', (*NEEDED, 'optuna')) if is_sweep else ('plots', NEEDED)
    for name in needed:  # fail now rather than after hours of runs
        if importlib.util.find_spec(name) is None:
            raise UserError(f'reports of studies and sweeps need {name}: {install(extra)}')
    home = file_io.expand_home(root or ('runs/sweeps' if is_sweep else 'runs/studies'), 'the workdir')
    sfl.runs.check_name(home)
    plan = plans.make(definition, changes)
    folder = home / plan.name
    with file_io.writing('--workdir'):
        for path in (home / LOGS, home / plans.RUNS, folder):
            path.mkdir(parents=True, exist_ok=True)
    work = _search(plan, folder, home) if is_sweep else _study(plan, folder, home)
    try:
        Session(home / plans.RUNS, home / LOGS, show, program, share=share).run(work, launcher)
    finally:
        _write(work, folder, show)
    if fault := work.fault():
        raise UserError(fault)
    return folder


def _study(plan: Plan, folder: Path, home: Path) -> Work:
    """Prepares the jobs of a study; what its finished ones read must not have changed since they began."""
    study, jobs = plan.definition, Jobs(plan.jobs, home / plans.RUNS, {})
    faults = jobs.faults
    read = results.read_jobs(plan, home, faults)
    sfl.runs.check_inputs([home / plans.RUNS / name for name, job in read.items() if job.runs])

    def write() -> str:
        read.update(results.read_jobs(plan, home, faults, read))
        report.write(folder, plan, read)
        return f'report in {folder}/report.md and report.html'

    def fault() -> str:
        failed = [faults[name] for name in read if name in faults and not read[name].runs]
        damaged = [job.missing for job in read.values() if job.missing.startswith(results.DAMAGED)]
        if not failed:
            return f'{len(damaged)} of {count(len(read), "run")} cannot be read; {damaged[0]}' if damaged else ''
        many = f'{len(failed)} of {count(len(read), "run")} failed' if len(failed) < len(read) else 'no run succeeded'
        return f'{many}; the first failed with: {failed[0]}; repeat the command to run what is missing'

    left = jobs.left()
    head = [f'{study.title}, scale {study.scale}: {count(len(plan.jobs), "run")}, {len(plan.jobs) - left} done']
    if left and (line := statistics.power_beforehand(study, results.fill(plan, read))):
        head.append(line)
    return Work(head, jobs.left, jobs.tasks, write, fault)


def _search(plan: Plan, folder: Path, home: Path) -> Work:
    """Prepares the trials of a sweep."""
    sweep, made = plan.definition, search.start(plan.definition, folder, home / plans.RUNS)

    def left() -> int:
        return sum(sweep.trials - len(result.trials) for result in made.results())

    def write() -> str:
        sweep_report.write(folder, made)
        return f'report in {folder}/report.md and report.html, settings in {folder}/{tuned.NAME}'

    total = sweep.trials * len(sweep.entries)
    head = [f'{sweep.title}: {count(total, "trial")}, {total - left()} done']
    return Work(head, left, made.tasks, write, str)


def _write(work: Work, folder: Path, show: Callable[[str], None]) -> None:
    """Writes the report; leaves a complete report in a read-only folder as it is."""
    with file_io.writing('--workdir'):
        try:
            with file_io.lock(folder / '.lock', wait=True):
                show(work.write())
        except OSError as error:
            if error.errno not in file_io.UNWRITABLE or work.left() or not (folder / 'report.md').exists():
                raise
            show(f'report in {folder}, complete and read-only')


def _finished(runs: Path, job: Job | CellJob) -> bool:
    """Returns whether a job has all its rounds, and no more."""
    summary = sfl.runs.finished(runs / job.name, job.rounds)
    return summary is not None and summary['rounds'] == job.rounds


@dataclasses.dataclass
class Session:
    """Executes jobs, one program at a time, and says when each starts and ends, with the time left.

    Once a minute it says the round.
    """

    runs: Path  # folder of all runs' folders
    logs: Path
    show: Callable[[str], None]
    program: Path | None = None
    reports: bool = True  # whether a report needs the provenance of runs
    share: int = 1  # number of processes that divide the jobs
    request: Any = None  # `interrupt.Request` to stop, which is passed on to the run
    ended: int = 0
    alone: set[str] = dataclasses.field(default_factory=set)  # names of jobs that ended unfinished beside others
    start: float = dataclasses.field(default_factory=time.time)

    def run(self, work: Work, launcher: Launcher | None = None) -> None:
        """Executes the jobs that are missing, here or by the jobs of a launcher, until there are none.

        Raises:
          Stopped: on a request.
          UserError: a job cannot be recorded, or the launcher's have ended too early.
        """
        for line in work.head:
            self.show(line)
        started = launcher.start(self.logs / 'jobs', work.left()) if launcher and work.left() else None
        with sfl.interrupt.listen() as self.request:
            if started:
                self._follow(work, started)
            else:
                self._execute_all(work)

    def _follow(self, work: Work, started: Started) -> None:
        """Says what the jobs of a launcher make, until all have ended."""
        self.show(f'{started.title}, with their output in {self.logs}/jobs')
        running, due, total = True, {task.label: task.job for task in work.tasks()}, work.left()
        while running:
            running = not all(job.done() for job in started.jobs)  # before looking at what is left
            now = {task.label: task.job for task in work.tasks()}
            for label in [label for label in due if label not in now]:
                self.ended += 1
                self.show(f'[{self.ended}/{total}] {label}\n    {due[label].outcome(self.runs)}')
            due = now
            if self.request.signum:
                raise sfl.interrupt.Stopped(started.stop(), self.request.signum)
            time.sleep(_POLL_SECONDS)
        for task in work.tasks():
            if failed := _failed(self.logs / f'{task.job.name}.log', self.start):
                self.show(f'{task.label}\n    {task.record(failed)}')
        if left := work.left():
            see = f'see their output in {self.logs}/jobs, and repeat the command'
            raise UserError(f'the jobs have ended, and {count(left, "run")} of {total} are missing; {see}')

    def _execute_all(self, work: Work) -> None:
        """Executes the jobs that are missing, also those that other processes have claimed and leave."""
        waited = ''
        while tasks := work.tasks():
            with contextlib.ExitStack() as stack:
                try:
                    claimed = self._claim(tasks, stack)
                except file_io.Locked as error:
                    if waited != str(error):
                        self.show(f'waiting: {error}')
                    waited = str(error)
                    self._pause()
                    continue
                due = {other.label for other in work.tasks()}
                if not (claimed := [task for task in claimed if task.label in due]):
                    continue  # another process has made them since
                total = self.ended + work.left()
                several = len(claimed) > 1
                for number, task in enumerate(claimed, self.ended + 1):
                    self.show(f'[{number}/{total}] {task.label}')
                if several:
                    self.show('    in one program')
                ended = self._make(claimed)
                for number, task in enumerate(claimed, self.ended + 1):
                    if task.job.name in ended:
                        outcome = task.record(ended[task.job.name])
                        self.show(f'    {f"[{number}] " if several else ""}{outcome}')
            self.ended += len(ended)
            if self.ended < total:
                seconds = (time.time() - self.start) / max(1, self.ended) * (total - self.ended)
                self.show(f'    about {tqdm.format_interval(seconds)} left')

    def _claim(self, tasks: Sequence[Task], stack: contextlib.ExitStack) -> list[Task]:
        """Locks jobs whose folders no other process has claimed or trains in, until the stack closes.

        Returns:
          The first such job and others of its program, no more than a `share` of all.

        Raises:
          Locked: there is none.
        """
        groups = sfl.grid.together(tasks, lambda task: '' if task.job.name in self.alone else task.job.program)
        for group in sorted(groups, key=lambda group: tasks.index(group[0])):
            claimed = list[Task]()
            for task in group:
                folder = self.runs / task.job.name
                with contextlib.ExitStack() as own:
                    try:
                        with file_io.writing('--workdir'):
                            file_io.make_folder(folder)
                            own.enter_context(file_io.lock(folder / CLAIM, claim=True))
                    except file_io.Locked as error:
                        reason = str(error)
                        continue
                    if reason := sfl.runs.busy(folder):
                        continue
                    claimed.append(task)
                    stack.push(own.pop_all())
                if len(claimed) >= min(task.job.beside, len(group) / self.share):
                    break
            if claimed:
                return claimed
        raise file_io.Locked(reason)

    def _pause(self) -> None:
        """Waits a moment; raises Stopped on a request."""
        if self.request.signum:
            raise sfl.interrupt.Stopped('stopped; the same command resumes from there', self.request.signum)
        time.sleep(_POLL_SECONDS)

    def _make(self, tasks: Sequence[Task]) -> dict[str, Failed | None]:
        """Executes jobs of one program, but for those that are finished; once all should stop, it is asked to stop.

        Returns:
          How each has ended, by name: how it failed, or None if it succeeded or was stopped because it should. Those
          that others have kept from ending are missing, and will be tried alone.

        Raises:
          Stopped: on a request.
        """
        ended, due, machine, before = (
            dict[str, Failed | None](),
            list[Task](),
            results.this_machine(),
            _processor_seconds(),
        )
        for task in tasks:
            name, log = task.job.name, self.logs / f'{task.job.name}.log'
            if task.should_stop() or _finished(self.runs, task.job):
                ended[name] = None
            elif failed := _failed(log, self.start):  # in another process
                ended[name] = failed
            elif damaged := self._note(task.job, machine):
                ended[name] = damaged
            else:
                due.append(task)
        if not due:
            return ended
        status, log = self._execute(due)
        seconds = (_processor_seconds() - before) / len(due)
        for task in due:
            name = task.job.name
            if damaged := self._note(task.job, machine, seconds):
                ended[name] = damaged
            elif _finished(self.runs, task.job):
                ended[name] = None
        if left := [task for task in due if task.job.name not in ended]:
            if self.request.signum:
                self._pause()
            for task in left:
                if failed := _failed(self.logs / f'{task.job.name}.log'):
                    ended[task.job.name] = failed._replace(log=log)
                elif task.should_stop() or (len(due) == 1 and status == 0):
                    ended[task.job.name] = None
                elif len(due) > 1:
                    self.alone.add(task.job.name)
                else:
                    last = log.read_text(errors='replace').strip().rpartition('\n')[2] or 'no output'
                    ended[task.job.name] = Failed(f'exit status {status} ({last})', status, log)
        return ended

    def _note(self, job: Job | CellJob, machine: Mapping[str, str], seconds: float | None = None) -> Failed | None:
        """Records the provenance of a job; returns how that fails if what was recorded before is damaged."""
        try:
            if self.reports:
                results.record_provenance(self.runs / job.name, machine, seconds)
        except UserError as error:
            return Failed(str(error), error.status, self.logs / f'{job.name}.log')
        return None

    def _execute(self, tasks: Sequence[Task]) -> tuple[int, Path]:
        """Executes jobs as a process; returns its exit status, and the file of its output.

        The files in `logs` of several jobs have their errors alone.
        """
        jobs = [task.job for task in tasks]
        logs = [self.logs / f'{job.name}.log' for job in jobs]
        log = logs[0] if len(jobs) == 1 else logs[0].with_suffix('.together.log')
        program = [str(self.program)] if self.program else ['-m', 'semisfl_jax']
        words = [
            word for job in jobs for word in ('--', f'--workdir={self.runs / job.name}', *job.arguments(self.runs))
        ]
        command = [sys.executable, *program, *words[1:]]
        paths = [str(Path(sfl.__file__).parents[1]), os.environ.get('PYTHONPATH', '')]  # this package first
        environment = os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, paths))}
        with log.open('w') as out:
            # In its own session: Ctrl-C reaches only this process, which forwards it once. It shares the claim.
            child = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=environment, close_fds=False
            )
            asked, said = False, time.monotonic()
            while child.poll() is None:
                if not asked and (self.request.signum or all(task.should_stop() for task in tasks)):
                    child.send_signal(self.request.signum or signal.SIGTERM)
                    asked = True
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_SECONDS)
                if time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
                    metrics = sfl.runs.trials(self.runs / jobs[0].name)[0] / 'metrics.jsonl'
                    said, done = time.monotonic(), metrics.read_bytes().count(b'\n') if metrics.exists() else 0
                    self.show(f'    round {done} of {jobs[0].rounds}')
        if len(jobs) > 1:
            lines = log.read_text(errors='replace').splitlines()
            for job, own in zip(jobs, logs, strict=True):
                mark = f'error: {job.name}: '
                errors = [f'error: {line.removeprefix(mark)}' for line in lines if line.startswith(mark)]
                own.write_text('\n'.join([f'its output is in {log.name}', *errors, '']))
        return child.returncode, log


def _failed(log: Path, since: float = 0.0) -> Failed | None:
    """Returns how a run has failed whose output was written since a time, by its last error; None if it has none."""
    text = log.read_text(errors='replace') if log.exists() and log.stat().st_mtime >= since else ''
    if not (errors := [line for line in text.splitlines() if line.startswith('error: ')]):
        return None
    status = Diverged.status if STOPPED in errors[-1] else UserError.status
    return Failed(errors[-1].removeprefix('error: '), status, log)


def _processor_seconds() -> float:
    """Returns what all processes took that this one has started and that have ended."""
    return sum(os.times()[2:4])
