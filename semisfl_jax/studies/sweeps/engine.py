"""Executes the trials of a sweep, and writes its report.

Trial by trial, each for all methods, so that at any moment they have had equal budgets. A sweep may be killed at any
moment: when restarted, it proposes the same settings again, finished runs are not repeated, and an unfinished one
resumes from its checkpoint. Whether a trial stops early depends on its validation scores after certain rounds, not on
when somebody looked; rounds that it made beyond them do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from semisfl_jax.core import atomic_io, user_files
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.wording import shorten
from semisfl_jax.plots import style
from semisfl_jax.studies import collect, execute
from semisfl_jax.studies.execute import Board
from semisfl_jax.studies.sweeps import report, search, spec
from semisfl_jax.studies.sweeps.search import PRUNED, Judge, Trial
from semisfl_jax.studies.sweeps.spec import Sweep
from semisfl_jax.training import interrupt

ROOT = 'runs/sweeps'


def run(
    sweep: Sweep,
    given: Mapping[str, Any],
    root: str,
    launcher: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Executes the trials of a sweep that are missing, and writes its report and, when all have ended, tuned.json.

    Args:
      sweep: as defined in its file.
      given: flat key -> value that the command line changes in all trials; `spec.OWN_KEYS` change the sweep.
      root: folder of all sweeps; '' means ROOT.
      launcher: a script that executes runs in place of `python -m semisfl_jax`.
      say: called with each line that tells of progress; the command prints them.

    Returns:
      The folder of the report.

    Raises:
      UserError: a mistake in the sweep or its changes, a folder that is not writable or belongs to another search, no
        Optuna or matplotlib, or a run that failed for another reason than numbers that are not finite.
      Stopped: the sweep was asked to stop; the report says what is missing.
    """
    style.matplotlib()  # fail now rather than after hours of runs
    search.optuna()
    if not isinstance(sweep, Sweep):
        raise UserError(f'sweep={shorten(repr(sweep))} is not a Sweep; make it as docs/sweeps.md does')
    sweep = spec.with_given(sweep, given)
    spec.check(sweep)
    home = user_files.expanded(root or ROOT, 'root')
    folder = home / spec.folder_name(sweep, given)
    execute.make_folders(home, folder)
    with execute.hold(folder):
        spec.check_definition(folder, sweep)
        storage = search.open_journal(folder)
        try:
            _search(sweep, storage, home, launcher, say)
        finally:
            with atomic_io.writing('--workdir'):
                report.write(folder, sweep, search.find(sweep, storage), home)
    say(f'report in {folder}/report.md and report.html, settings in {folder}/tuned.json')
    return folder


def _search(sweep: Sweep, storage: Any, home: Path, launcher: Path | None, say: Callable[[str], None]) -> None:
    ended = {entry.title: len(search.ended_trials(storage, entry.title)) for entry in sweep.entries}
    missing = [(n, entry) for n in range(sweep.trials) for entry in sweep.entries if n >= ended[entry.title]]
    total = sweep.trials * len(sweep.entries)
    say(
        f'{sweep.title}{f", scale {sweep.scale}" if sweep.scale else ""}: '
        f'{len(sweep.entries)} method{"s" * (len(sweep.entries) > 1)}, '
        f'{sweep.trials} trial{"s" * (sweep.trials > 1)} each, {total - len(missing)} of {total} done'
    )
    folders: dict[str, Path] = {}

    def made(name: str) -> int:
        return execute.rounds_done(folders[name]) if name in folders else 0

    work = {search.trial_name(entry, n): sweep.config.rounds * len(sweep.seeds) for n, entry in missing}
    with interrupt.listen() as request, Board(work, made, say) as shown:
        here = collect.this_machine() if missing else {}
        for _, entry in missing:
            case = search.next_case(sweep, entry, search.ended_trials(storage, entry.title), home)
            folders[case.name] = case.folder
            execute.wait(case.folder, request, say)
            shown.start(case.name, f'{case.name}: {_words(case.values)}')
            failed = None
            if not search.stopped_after(case) and not execute.finished(home, case.job):
                failed = execute.make(home, case.job, launcher, here, request, shown.look, say, partial(_enough, case))
            outcome, judge = search.ended_trial(case, failed)
            search.record(storage, entry.title, entry.ranges, outcome, judge.score.higher_is_better)
            unmade = max(0, work[case.name] - made(case.name))
            shown.end(case.name, _told(outcome, [*case.done, outcome], judge), unmade)


def _enough(case: search.Case) -> bool:
    return search.stopped_after(case) > 0


def _words(values: Mapping[str, Any]) -> str:
    return ', '.join(f'{key}={value}' for key, value in values.items())


def _told(outcome: Trial, trials: Sequence[Trial], judge: Judge) -> str:
    """'validation accuracy 81.20%; best: 83.05%, trial 3'."""
    number = search.best(trials, judge.score.higher_is_better)
    score = None if number is None else trials[number].score
    best = '' if score is None else f'; best: {judge.score.text(score)}, trial {number}'
    if outcome.score is not None:
        return f'validation {judge.score.label} {judge.score.text(outcome.score)}{best}'
    how = f'stopped after round {outcome.rounds}' if outcome.state == PRUNED else outcome.why
    return f'{how}{best}'
