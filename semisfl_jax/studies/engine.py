"""Executes the missing runs of a study, and writes its report.

Each run is the process of one command, so that its memory is released, and a failing run affects no other. A study may
be killed at any moment: when restarted, it skips finished runs, and the first unfinished one resumes from its
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from semisfl_jax.core import atomic_io, user_files
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.wording import shorten
from semisfl_jax.plots import style
from semisfl_jax.studies import checks, collect, execute, plan, report, statistics, tuned
from semisfl_jax.studies.execute import Board
from semisfl_jax.studies.spec import OWN_KEYS, Study
from semisfl_jax.training import interrupt

ROOT = 'runs/studies'


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
      given: flat key -> value that the command line changes in all runs; `spec.OWN_KEYS` change the study.
      root: folder of all studies; '' means ROOT.
      launcher: a script that executes runs in place of `python -m semisfl_jax`.
      say: called with each line that tells of progress; the command prints them.

    Returns:
      The folder of the report.

    Raises:
      UserError: a mistake in the study or its changes, a folder that is not writable, no matplotlib, a run failed, or
        a finished one cannot be read; in these two cases the report is there.
      Stopped: the study was asked to stop; the report says what is missing.
    """
    style.matplotlib()  # fail now rather than after hours of runs
    statistics.check()
    if not isinstance(study, Study):
        raise UserError(f'study={shorten(repr(study))} is not a Study; make it as docs/studies.md does')
    checks.check(study)
    study, given = _with_given(study, given)
    plan.check(study)
    home, jobs = user_files.expanded(root or ROOT, 'root'), plan.jobs(study)
    folder = home / plan.report_name(study, given)
    execute.make_folders(home, folder)

    with execute.hold(folder):
        faults, damaged = _make(study, home, folder, jobs, launcher, say)
    say(f'report in {folder}/report.md and report.html')
    unfinished = [job.name for job in jobs if not execute.finished(home, job)]
    if failed := [name for name in faults if name in unfinished]:
        many = f'{len(failed)} of {len(jobs)} runs failed'
        if len(unfinished) == len(jobs):
            many = 'no run succeeded'
        raise UserError(f'{many}; the first failed with: {faults[failed[0]]}; the same command makes what is missing')
    if damaged:
        name, fault = next(iter(damaged.items()))
        verb = 'is' if len(damaged) == 1 else 'are'
        raise UserError(
            f'of the finished runs, {len(damaged)} cannot be read and {verb} not in the report; the first: {fault}; '
            f'restore its files from a copy, or remove {home / plan.RUNS / name}, and repeat the command'
        )
    return folder


def _make(
    study: Study, home: Path, folder: Path, jobs: list[plan.Job], launcher: Path | None, say: Callable[[str], None]
) -> tuple[dict[str, str], dict[str, str]]:
    """Executes what is missing of `jobs`, and writes the report, also if it is stopped.

    Returns:
      {run: error} of those that failed, and of those that are finished but cannot be read.
    """
    missing = [job for job in jobs if not execute.finished(home, job)]
    say(f'{study.title}, scale {study.scale}: {len(jobs)} runs, {len(jobs) - len(missing)} of them done')
    if missing and (line := statistics.power_beforehand(study, collect.find(study, home, {}))):
        say(line)
    faults: dict[str, str] = {}
    try:
        with interrupt.listen() as request, _board(home, missing, say) as shown:
            entry = collect.this_machine() if missing else {}
            for job in _free_first(home, missing):
                execute.wait(home / plan.RUNS / job.name, request, say)
                if not execute.finished(home, job):
                    shown.start(job.name, job.command())
                    if failed := execute.make(home, job, launcher, entry, request, shown.look, say):
                        faults[job.name] = failed.line
                fault = faults.get(job.name, '')
                shown.end(job.name, f'failed: {fault}' if fault else 'done')
    finally:
        found = collect.find(study, home, faults)
        with atomic_io.writing('--workdir'):
            report.write(folder, study, found)
    damaged = collect.damaged(found)
    for name, fault in damaged.items():
        say(f'{name} is finished, but not in the report: {fault}')
    return faults, damaged


def _free_first(home: Path, jobs: Sequence[plan.Job]) -> Iterator[plan.Job]:
    """`jobs`, each time the first in whose folder no other process is: studies that share runs divide them so."""
    left = list(jobs)
    while left:
        job = next((job for job in left if not execute.busy(home / plan.RUNS / job.name)), left[0])
        left.remove(job)
        yield job


def _with_given(study: Study, given: Mapping[str, Any]) -> tuple[Study, dict[str, Any]]:
    """The study with everything that the command line changes, and the keys among it that are those of runs."""
    of_runs = {key: value for key, value in given.items() if key not in OWN_KEYS}
    if given.get('study_rows') or given.get('study_columns'):
        rows, columns = (list({getattr(cell, kind): None for cell in study.cells()}) for kind in ('row', 'column'))
        study = study.part(_names(given.get('study_rows'), rows), _names(given.get('study_columns'), columns))
    source, beside = given.get('study_tuned', ''), given.get('study_untuned', False)
    if not source:
        if beside:
            raise UserError('config.study_untuned=True needs tuned settings beside it; write --config.study_tuned=FILE')
        return plan.with_given(study, of_runs), of_runs
    result = tuned.read(user_files.expanded(source, 'config.study_tuned'))
    study = plan.with_given(tuned.apply(study, result, source, beside), of_runs)
    tuned.check_seeds(study, result, source)
    return study, of_runs


def _names(given: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    """Rows or columns from the command line, all if none is given; a single word may have several between commas."""
    if not given:
        return known
    return [name for word in given for name in ([word] if word in known else word.split(','))]


def _board(home: Path, missing: list[plan.Job], say: Callable[[str], None]) -> Board:
    work = {job.name: job.rounds * len(job.seeds) for job in missing}
    return Board(work, lambda name: execute.rounds_done(home / plan.RUNS / name), say)
