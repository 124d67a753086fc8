"""What the trials of a sweep have found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax.config import keys
from semisfl_jax.studies import collect
from semisfl_jax.studies import plan as studies_plan
from semisfl_jax.studies.sweeps import measure, plan, search
from semisfl_jax.studies.sweeps.measure import Judge
from semisfl_jax.studies.sweeps.search import STATES, Trial
from semisfl_jax.studies.sweeps.spec import Entry, Sweep
from semisfl_jax.studies.tuned import ABOUT, Tuned, TunedMethod


class Result(NamedTuple):
    """The trials of a method."""

    entry: Entry
    trials: list[Trial]  # that have ended
    judge: Judge | None  # None before the first has

    @property
    def best(self) -> int | None:
        """The number of the best complete trial, of equal ones the first; None before the first has ended."""
        return best(self.trials, self.judge.score.higher_is_better) if self.judge else None

    def states(self) -> dict[str, int]:
        """How many trials ended how."""
        return {state: sum(trial.state == state for trial in self.trials) for state in STATES}


def best(trials: Sequence[Trial], maximize: bool) -> int | None:
    """The number of the best complete trial, of equal ones the first; None if none is complete."""
    scores = {n: trial.score for n, trial in enumerate(trials) if trial.score is not None}
    if not scores:
        return None
    return max(scores, key=lambda n: scores[n] if maximize else -scores[n])


def find(sweep: Sweep, storage: Any) -> list[Result]:
    """The trials of every method of a sweep, at most as many as it has."""
    results = []
    for entry in sweep.entries:
        trials = search.trials(storage, entry.title)[: sweep.trials]
        judge = measure.judge(trials[0].key) if trials else None
        results.append(Result(entry, trials, judge))
    return results


def whole(sweep: Sweep, results: Sequence[Result]) -> bool:
    """Whether all trials of all methods have ended."""
    return all(len(result.trials) == sweep.trials for result in results)


def tuned(sweep: Sweep, results: Sequence[Result], home: Path) -> Tuned:
    """The result of a whole sweep, for studies."""
    judge = results[0].judge
    assert judge is not None
    flat = keys.flat(sweep.config)
    return Tuned(
        sweep=sweep.name,
        scale=sweep.scale,
        score=judge.score.label,
        percent=judge.score.percent,
        seeds=sweep.seeds,
        about={key: flat[key] for key in ABOUT},
        commits=tuple(dict.fromkeys(made['commit'] for result in results for made in provenance(result, home))),
        optuna=search.version(),
        methods=tuple(_found(sweep, result) for result in results),
    )


def provenance(result: Result, home: Path) -> list[dict[str, str]]:
    """Commits and machines of the runs of a method, without duplicates."""
    entries: list[dict[str, str]] = []
    for trial in result.trials:
        made = collect.provenance(home / studies_plan.RUNS / trial.run)
        entries += [entry for entry in made if entry not in entries]
    return entries


def _found(sweep: Sweep, result: Result) -> TunedMethod:
    number = result.best
    assert number is not None
    entry, first, chosen = result.entry, result.trials[0], result.trials[number]
    assert chosen.score is not None
    assert first.score is not None
    return TunedMethod(
        title=entry.title,
        fixed=dict(entry.fixed),
        settings=plan.settings(sweep, chosen.values),
        trial=number,
        validation=chosen.score,
        untuned=plan.settings(sweep, first.values),
        untuned_validation=first.score,
        trials=len(result.trials),
        states=result.states(),
        ranges={key: range_.text for key, range_ in entry.ranges.items()},
        run=chosen.run,
    )
