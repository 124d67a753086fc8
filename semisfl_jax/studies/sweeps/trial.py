"""One trial: the settings it has, when it stops early, and how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax.core.errors import Diverged, UserError
from semisfl_jax.studies import execute
from semisfl_jax.studies.plan import RUNS, Job
from semisfl_jax.studies.sweeps import measure, plan, search
from semisfl_jax.studies.sweeps.measure import Judge
from semisfl_jax.studies.sweeps.search import COMPLETE, DIVERGED, PRUNED, Trial
from semisfl_jax.studies.sweeps.spec import Entry, Sweep
from semisfl_jax.training import checks


class Case(NamedTuple):
    """A trial that is to be made."""

    sweep: Sweep
    entry: Entry
    done: list[Trial]  # the trials of the method before it
    judge: Judge | None  # None for the first trial
    values: dict[str, Any]  # of the searched keys
    job: Job
    home: Path

    @property
    def name(self) -> str:
        """'SemiSFL, trial 3'."""
        return name(self.entry, len(self.done))

    @property
    def folder(self) -> Path:
        """Of its run."""
        return self.home / RUNS / self.job.name


def name(entry: Entry, number: int) -> str:
    """'SemiSFL, trial 3'."""
    return f'{entry.title}, trial {number}'


def case(sweep: Sweep, entry: Entry, done: list[Trial], home: Path) -> Case:
    """The next trial of a method: the first has the values of the configuration."""
    judge = measure.judge(done[0].key) if done else None
    values = (
        search.propose(done, entry.ranges, judge.score.higher_is_better, sweep.seed, entry.title)
        if judge
        else plan.untuned(sweep, entry)
    )
    return Case(sweep, entry, done, judge, values, plan.job(sweep, entry, values), home)


def stopped(case: Case) -> int:
    """The round after which a trial stops early, 0 if none of those that its run has made so far.

    The first trial of a method never does.
    """
    if case.judge is None or not case.sweep.prune:
        return 0
    curve = _at_stops(case, case.judge)
    for at in curve:
        so_far = {number: value for number, value in curve.items() if number <= at}
        if search.stops(case.done, case.entry.ranges, case.judge.score.higher_is_better, case.values, so_far):
            return at
    return 0


def ended(case: Case, failed: execute.Failed | None) -> tuple[Trial, Judge]:
    """The trial whose run is over, and the number by which it was judged.

    Args:
      case: the trial.
      failed: how its run failed, None if it did not.

    Raises:
      UserError: it failed otherwise than because its numbers were not finite; or it is the first, and did.
    """
    at = stopped(case)
    if failed and not at and (failed.status != Diverged.status or case.judge is None):
        log = case.home / execute.LOGS / f'{case.job.name}.log'
        raise UserError(f'{case.name}: {failed.line} (output in {log}); the same command tries it again')
    judge = case.judge or measure.judge(measure.key_of(case.folder))
    if failed and not at:
        curve = measure.curve(case.folder, case.sweep.seeds, judge.key)
        why = checks.without_advice(failed.line)
        return Trial(case.values, DIVERGED, None, {}, max(curve, default=0), case.job.name, judge.key, why), judge
    curve = _at_stops(case, judge)
    if at:
        curve = {number: value for number, value in curve.items() if number <= at}
        return Trial(case.values, PRUNED, None, curve, at, case.job.name, judge.key), judge
    last = case.job.rounds
    score = measure.curve(case.folder, case.sweep.seeds, judge.key).get(last)
    if score is None:
        raise UserError(f'{case.name}: {case.folder} has no {judge.key} after round {last}; remove that folder')
    return Trial(case.values, COMPLETE, score, curve, last, case.job.name, judge.key), judge


def _at_stops(case: Case, judge: Judge) -> dict[int, float]:
    """The curve so far, at the rounds after which trials can stop."""
    curve = measure.curve(case.folder, case.sweep.seeds, judge.key)
    return {at: curve[at] for at in measure.stops(case.job.rounds, case.sweep.config.eval_every) if at in curve}
