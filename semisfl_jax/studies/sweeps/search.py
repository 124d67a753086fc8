"""The search: which settings a trial has, whether it stops early, how it ended, and the file that remembers it.

A proposal depends on the ended trials, the seed of the search and the number of the trial alone, and only ended trials
are written down, so that a search that was killed proposes the same again. Whether a trial stops early depends on its
validation scores after certain rounds, not on when somebody looked; rounds beyond them do not count.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from semisfl_jax import runs, tasks
from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.config import keys
from semisfl_jax.core import file_io, rng
from semisfl_jax.core.errors import Diverged, UserError, count
from semisfl_jax.studies import collect, plan, sweeps, tuned
from semisfl_jax.studies.sweeps import Entry, Sweep
from semisfl_jax.tasks import Score
from semisfl_jax.training import checks, metrics

if TYPE_CHECKING:
    from semisfl_jax.studies.engine import Failed, Session

COMPLETE, PRUNED, DIVERGED = 'complete', 'pruned', 'diverged'
STATES = (COMPLETE, PRUNED, DIVERGED)
# Trials drawn at random before the model of good settings is used, and before any trial is stopped early: with fewer,
# a median says little. The first has the values of the configuration.
RANDOM_TRIALS = 5
DIGITS = 3  # significant ones of a proposal, so that tables and commands are readable
STOPS = 4  # a trial can be stopped after a quarter, half and three quarters of its rounds


class Trial(NamedTuple):
    """A trial that has ended."""

    values: dict[str, Any]  # of the searched keys
    state: str  # of STATES
    score: float | None  # validation score; None unless complete
    curve: dict[int, float]  # validation score so far, after the rounds at which it could have been stopped
    rounds: int  # after which it ended, of one seed
    run: str  # name of the folder of its run
    key: str  # in metrics.jsonl, of what it was judged by
    why: str = ''  # it diverged


class Result(NamedTuple):
    """The ended trials of a method."""

    entry: Entry
    trials: list[Trial]

    @property
    def score(self) -> Score:
        """By which trials are judged, once one has ended."""
        return score_of(self.trials[0].key)

    @property
    def best(self) -> int | None:
        """The number of the best complete trial, of equal ones the first; None before the first has ended."""
        scores = {number: trial.score for number, trial in enumerate(self.trials) if trial.score is not None}
        sign = 1 if scores and self.score.higher_is_better else -1
        return max(scores, key=lambda number: sign * scores[number], default=None)

    def states(self) -> dict[str, int]:
        return {state: sum(trial.state == state for trial in self.trials) for state in STATES}


class Case(NamedTuple):
    """A trial that is to be made: the next one of a method."""

    sweep: Sweep
    entry: Entry
    done: list[Trial]  # the trials before it
    values: dict[str, Any]  # of the searched keys
    job: plan.Job
    folder: Path  # of its run

    @property
    def name(self) -> str:
        """'SemiSFL, trial 3'."""
        return f'{self.entry.title}, trial {len(self.done)}'

    def at_stops(self, scores: Mapping[int, float]) -> dict[int, float]:
        """Those of the `scores` by round after which a trial can stop."""
        stops = stop_rounds(self.job.rounds, self.sweep.config.eval_every)
        return {number: scores[number] for number in stops if number in scores}


def run(sweep: Sweep, storage: Any, session: Session) -> None:
    """Makes the trials that are missing, each for all methods, so that at any moment they have had equal budgets.
    UserError: a run failed for another reason than numbers that are not finite, or so did a method's first. Stopped."""
    ended = {entry.title: len(trials(storage, entry.title)) for entry in sweep.entries}
    missing = [entry for number in range(sweep.trials) for entry in sweep.entries if number >= ended[entry.title]]
    total = sweep.trials * len(sweep.entries)
    session.show(f'{sweep.title}: {count(total, "trial")}, {total - len(missing)} done')
    session.count = len(missing)
    for entry in missing:
        done = trials(storage, entry.title)
        values = _propose(done, entry, sweep.seed) if done else sweeps.untuned(sweep, entry)
        job = sweeps.job(sweep, entry, values)
        case = Case(sweep, entry, done, values, job, session.home / plan.RUNS / job.name)
        words = ', '.join(f'{key}={value}' for key, value in values.items())
        trial = _ended(case, session.make(job, f'{case.name}: {words}', partial(_stopped_after, case)))
        study = optuna().create_study(
            study_name=entry.title, storage=storage, load_if_exists=True, direction=_direction(trial)
        )
        study.add_trial(_frozen(trial, entry.ranges))
        score = Result(entry, [trial]).score
        outcome = f'validation {score.label} {score.text(trial.score)}' if trial.state == COMPLETE else trial.why
        session.end(outcome or f'stopped after round {trial.rounds}')


def _stopped_after(case: Case) -> int:
    """The round after which a trial stops early, its best score until then being behind the median of the complete ones
    there; 0 if none of those that its run has made so far."""
    complete = [trial for trial in case.done if trial.state == COMPLETE]
    if not case.sweep.prune or len(complete) < RANDOM_TRIALS:
        return 0
    key = case.done[0].key
    better = max if score_of(key).higher_is_better else min
    curve = case.at_stops(running_scores(case.folder, case.sweep.seeds, key))
    for at in curve:
        best = better(value for number, value in curve.items() if number <= at)
        middle = np.median([trial.curve[at] for trial in complete if at in trial.curve] or [best])
        if best != middle and better(best, middle) == middle:
            return at
    return 0


def _ended(case: Case, failed: Failed | None) -> Trial:
    """The trial whose run is over; `failed`: how its run failed, None if it did not."""
    at = _stopped_after(case)
    if failed and not at and (failed.status != Diverged.status or not case.done):
        raise UserError(f'{case.name}: {failed.line} (output in {failed.log}); the same command tries it again')
    key = case.done[0].key if case.done else runs.read(runs.trials(case.folder)[0]).key
    scores = running_scores(case.folder, case.sweep.seeds, key)
    curve, last, name = case.at_stops(scores), case.job.rounds, case.job.name
    if at:
        so_far = {number: value for number, value in curve.items() if number <= at}
        return Trial(case.values, PRUNED, None, so_far, at, name, key)
    if failed:
        why = checks.without_advice(failed.line)
        return Trial(case.values, DIVERGED, None, {}, max(scores, default=0), name, key, why)
    if last not in scores:
        raise UserError(f'{case.name}: {case.folder} has no {key} after round {last}; remove that folder')
    return Trial(case.values, COMPLETE, scores[last], curve, last, name, key)


def score_of(key: str) -> Score:
    """The score under a key of metrics.jsonl."""
    headline = tasks.split_key(key)
    assert headline is not None, key
    return headline.score


def running_scores(folder: Path, seeds: Sequence[int], key: str) -> dict[int, float]:
    """Round -> score up to there: the mean over seeds of the means over the last ten evaluations. Only rounds that have
    been evaluated in the runs of all seeds, finished or not."""
    curves = []
    for home in [folder / f'seed_{seed}' for seed in seeds] if len(seeds) > 1 else [folder]:
        evaluated = [record for record in metrics.read(home / 'metrics.jsonl') if record.get(key) is not None]
        values = [record[key] for record in evaluated]
        means = [sum(values[max(0, n - metrics.LAST) : n]) / min(n, metrics.LAST) for n in range(1, len(values) + 1)]
        curves.append({record['round']: mean for record, mean in zip(evaluated, means, strict=True)})
    shared = sorted(set.intersection(*map(set, curves)))
    return {number: sum(curve[number] for curve in curves) / len(curves) for number in shared}


def stop_rounds(rounds: int, evaluated: int) -> list[int]:
    """The rounds, of `rounds` in all, after which a trial can be stopped: with an evaluation every `evaluated` rounds,
    the first ones from a quarter, half and three quarters on."""
    wanted = [-(-rounds * part // STOPS) for part in range(1, STOPS)]
    found = [-(-number // evaluated) * evaluated for number in wanted]
    return sorted({number for number in found if number < rounds})


# --- Optuna and its journal


def optuna() -> Any:
    """The library, imported on first use, without its messages."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_journal(folder: Path, sweep: Sweep) -> Any:
    """The storage of a sweep, in `folder`, which the caller has locked; a last line truncated by a kill is removed. Its
    file is named after all that a trial depends on, so that another search begins anew, with the runs that are there.
    """
    definition: list[Any] = [sweep.seed, sweep.prune]
    for entry in sweep.entries:
        untuned = sweeps.job(sweep, entry, sweeps.untuned(sweep, entry)).name
        definition += [entry.title, untuned, {key: range_.text for key, range_ in entry.ranges.items()}]
    mark = hashlib.sha256(json.dumps(definition).encode()).hexdigest()[:6]
    library, file = optuna().storages, folder / f'optuna-{mark}.journal'
    if file.exists():
        metrics.truncate(file, file_io.read(file).count(b'\n'))
    # Other processes are locked out already, since the folder is
    backend = library.journal.JournalFileBackend(str(file), lock_obj=threading.Lock())
    return library.JournalStorage(backend)


def trials(storage: Any, name: str) -> list[Trial]:
    """The ended trials of a method, in order."""
    library = optuna()
    if name not in library.get_all_study_names(storage):
        return []
    found = []
    for frozen in library.load_study(study_name=name, storage=storage).get_trials(deepcopy=False):
        trial = Trial(**frozen.user_attrs['trial'])
        found.append(trial._replace(curve={int(number): value for number, value in trial.curve.items()}))
    return found


def find(sweep: Sweep, storage: Any) -> list[Result]:
    """The trials of every method of a sweep, at most as many as it has."""
    return [Result(entry, trials(storage, entry.title)[: sweep.trials]) for entry in sweep.entries]


def _propose(done: Sequence[Trial], entry: Entry, seed: int) -> dict[str, Any]:
    """The values of the next trial of a method, by key; `seed`: of the search."""
    stream = rng.host(seed, 'sweep', entry.title, len(done))
    sampler = optuna().samplers.TPESampler(
        n_startup_trials=RANDOM_TRIALS, multivariate=True, seed=int(stream.integers(2**32))
    )
    asked = _study(done, entry.ranges, sampler).ask(_distributions(entry.ranges))
    return {
        key: min(max(float(f'{value:.{DIGITS}g}'), range_.low), range_.high)
        if type(value := asked.params[key]) is float and range_.scale != 'choice'
        else value
        for key, range_ in entry.ranges.items()
    }


def importance(done: Sequence[Trial], ranges: Mapping[str, Range]) -> dict[str, float]:
    """Share of each key in the variance of the score (fANOVA), largest first; {} where there are too few trials."""
    complete = [trial for trial in done if trial.state == COMPLETE]
    if len(complete) <= RANDOM_TRIALS or len({trial.score for trial in complete}) < 2:
        return {}
    library = optuna().importance
    evaluator = library.FanovaImportanceEvaluator(seed=0)
    shares = library.get_param_importances(_study(complete, ranges), evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def _direction(trial: Trial) -> str:
    return 'maximize' if score_of(trial.key).higher_is_better else 'minimize'


def _study(done: Sequence[Trial], ranges: Mapping[str, Range], sampler: Any = None) -> Any:
    """The ended trials, at least one, as a study in memory, which nothing asked of it changes on disk."""
    study = optuna().create_study(direction=_direction(done[0]), sampler=sampler)
    study.add_trials([_frozen(trial, ranges) for trial in done])
    return study


def _frozen(trial: Trial, ranges: Mapping[str, Range]) -> Any:
    """A trial for Optuna. One that diverged is the worst of all: pruned, without a value from its way."""
    library = optuna().trial
    return library.create_trial(
        state=library.TrialState.COMPLETE if trial.state == COMPLETE else library.TrialState.PRUNED,
        value=trial.score,
        params=trial.values,
        distributions=_distributions(ranges),
        intermediate_values={} if trial.state == DIVERGED else trial.curve,
        user_attrs={'trial': trial._asdict()},
    )


def _distributions(ranges: Mapping[str, Range]) -> dict[str, Any]:
    kinds, found = optuna().distributions, {}
    for key, range_ in ranges.items():
        if range_.scale == 'choice':
            found[key] = kinds.CategoricalDistribution(range_.values)
            continue
        integers = isinstance(range_.low, int) and isinstance(range_.high, int)
        kind = kinds.IntDistribution if integers else kinds.FloatDistribution
        found[key] = kind(range_.low, range_.high, log=range_.scale == 'log')
    return found


# --- for studies


def provenance(result: Result, home: Path) -> list[dict[str, Any]]:
    """Commits and machines of the runs of a method."""
    return [entry for trial in result.trials for entry in collect.read_provenance(home / plan.RUNS / trial.run)]


def tuned_settings(sweep: Sweep, results: Sequence[Result], home: Path) -> tuned.Tuned:
    """The result of a sweep whose trials have all ended, for studies."""
    flat, score, methods = keys.flat(sweep.config), results[0].score, []
    for result in results:
        entry, first, number = result.entry, result.trials[0], result.best
        assert number is not None
        best = result.trials[number]
        assert first.score is not None
        assert best.score is not None
        methods.append(
            tuned.TunedMethod(
                title=entry.title,
                fixed=dict(entry.fixed),
                settings=sweeps.settings(sweep, best.values),
                trial=number,
                validation=best.score,
                untuned=sweeps.settings(sweep, first.values),
                untuned_validation=first.score,
                trials=len(result.trials),
                states=result.states(),
                ranges={key: range_.text for key, range_ in entry.ranges.items()},
                run=best.run,
            )
        )
    return tuned.Tuned(
        sweep=sweep.name,
        scale=sweep.scale,
        score=score.label,
        percent=score.percent,
        seeds=sweep.seeds,
        about={key: flat[key] for key in tuned.ABOUT},
        commits=tuple(dict.fromkeys(made['commit'] for result in results for made in provenance(result, home))),
        optuna=optuna().__version__,
        methods=tuple(methods),
    )
