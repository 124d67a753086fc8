"""The search itself, by Optuna: which settings a trial has, whether it stops early, and the file that remembers it.

A proposal depends on the trials before it, on the seed of the search and on the number of the trial, and on nothing
else: for every trial, a new sampler with a seed of its own looks at the finished ones. Only ended trials are written
down, each in one line, so that a search that was killed proposes the same again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax import runs, tasks
from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.config import keys
from semisfl_jax.core import atomic_io, rng
from semisfl_jax.core.errors import Diverged, UserError
from semisfl_jax.studies import collect, execute
from semisfl_jax.studies import plan as studies_plan
from semisfl_jax.studies.collect import LAST
from semisfl_jax.studies.plan import RUNS, Job
from semisfl_jax.studies.sweeps import spec
from semisfl_jax.studies.sweeps.spec import Entry, Sweep
from semisfl_jax.studies.tuned import ABOUT, Tuned, TunedMethod
from semisfl_jax.tasks import Score
from semisfl_jax.training import finite, metrics

JOURNAL = 'optuna.journal'
COMPLETE, PRUNED, DIVERGED = 'complete', 'pruned', 'diverged'
STATES = (COMPLETE, PRUNED, DIVERGED)
# Trials drawn at random before the model of good settings is used, and before any trial is stopped early: with fewer,
# a median says little. The first has the values of the configuration.
RANDOM_TRIALS = 5
DIGITS = 3  # significant ones of a proposal, so that tables and commands are readable


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


def optuna() -> Any:
    """The library, imported on first use.

    Raises:
      UserError: it is not installed.
    """
    try:
        library = importlib.import_module('optuna')
    except ImportError as error:
        raise UserError("sweeps need Optuna: pip install -e '.[sweeps]'") from error
    library.logging.set_verbosity(library.logging.WARNING)
    return library


class _Held:
    """A lock of a journal that is held already: a sweep locks its folder."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def open_journal(folder: Path) -> Any:
    """The storage of a sweep, in `folder`, which the caller has locked. A last line truncated by a kill is removed.

    Raises:
      UserError: the file is not readable, or not a journal.
    """
    library, file = optuna(), folder / JOURNAL
    whole: list[bytes] = []
    if file.exists():
        *whole, _ = atomic_io.content(file).split(b'\n')
        metrics.cut_back(file, len(whole))
    backend = importlib.import_module('optuna.storages.journal').JournalFileBackend(str(file), lock_obj=_Held())
    try:
        for line in whole:
            json.loads(line)  # Optuna forgives the last one, until it has written another behind it
        return library.storages.JournalStorage(backend)
    except Exception as error:  # whatever Optuna finds in a line that it did not write
        raise UserError(f'{file} is damaged ({error}); restore it from a copy, or remove it: runs are kept') from error


def ended_trials(storage: Any, name: str) -> list[Trial]:
    """The ended trials of a method, in order.

    Raises:
      UserError: there is one that something else has added.
    """
    library = optuna()
    if name not in library.get_all_study_names(storage):
        return []
    study = library.load_study(study_name=name, storage=storage)
    try:
        return [_read_trial(frozen) for frozen in study.get_trials(deepcopy=False)]
    except KeyError as error:
        raise UserError(
            f"{JOURNAL} in the sweep's folder has a trial of {name} that this version of the package did not write; "
            'restore it from a copy, or remove that folder: the runs, which are not in it, are used again'
        ) from error


def _read_trial(frozen: Any) -> Trial:
    note = frozen.user_attrs
    return Trial(
        dict(frozen.params),
        note['state'],
        frozen.value if note['state'] == COMPLETE else None,
        {int(step): value for step, value in note['curve'].items()},
        note['rounds'],
        note['run'],
        note['key'],
        note['why'],
    )


def record(storage: Any, name: str, ranges: Mapping[str, Range], trial: Trial, maximize: bool) -> None:
    """Writes down the next trial of a method."""
    study = optuna().create_study(study_name=name, storage=storage, load_if_exists=True, direction=_direction(maximize))
    study.add_trial(_frozen(trial, ranges))


def propose(done: Sequence[Trial], ranges: Mapping[str, Range], maximize: bool, seed: int, name: str) -> dict[str, Any]:
    """The values of the next trial, by key.

    Args:
      done: all earlier ones, of which the first has the values of the configuration.
      ranges: of the searched keys.
      maximize: whether higher scores are better.
      seed: of the search.
      name: of the method.
    """
    library, stream = optuna(), rng.host(seed, 'sweep', name, len(done))
    sampler = library.samplers.TPESampler(
        n_startup_trials=RANDOM_TRIALS, multivariate=True, seed=int(stream.integers(2**32))
    )
    asked = _study(done, ranges, maximize, sampler).ask(_distributions(ranges))
    return {key: _rounded(asked.params[key], ranges[key]) for key in ranges}


def is_behind(
    done: Sequence[Trial],
    ranges: Mapping[str, Range],
    maximize: bool,
    values: Mapping[str, Any],
    curve: dict[int, float],
) -> bool:
    """Whether a trial ends after the last round of its `curve`, being behind the median of the complete ones there."""
    library = optuna()
    pruner = library.pruners.MedianPruner(n_startup_trials=RANDOM_TRIALS, n_warmup_steps=0)
    running = library.trial.create_trial(
        state=library.trial.TrialState.RUNNING,
        params=dict(values),
        distributions=_distributions(ranges),
        intermediate_values=curve,
    )
    return pruner.prune(_study(done, ranges, maximize), running)


def importance(done: Sequence[Trial], ranges: Mapping[str, Range], maximize: bool) -> dict[str, float]:
    """Share of each key in the variance of the score (fANOVA), largest first; {} where there are too few trials."""
    complete = [trial for trial in done if trial.state == COMPLETE]
    if len(complete) <= RANDOM_TRIALS or len({trial.score for trial in complete}) < 2:
        return {}
    evaluator = optuna().importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna().importance.get_param_importances(_study(complete, ranges, maximize), evaluator=evaluator)
    return {key: float(share) for key, share in shares.items()}


def version() -> str:
    """Of Optuna."""
    return optuna().__version__


def _direction(maximize: bool) -> str:
    return 'maximize' if maximize else 'minimize'


def _study(done: Sequence[Trial], ranges: Mapping[str, Range], maximize: bool, sampler: Any = None) -> Any:
    """The ended trials as a study in memory, which nothing asked of it changes on disk."""
    study = optuna().create_study(direction=_direction(maximize), sampler=sampler)
    study.add_trials([_frozen(trial, ranges) for trial in done])
    return study


def _frozen(trial: Trial, ranges: Mapping[str, Range]) -> Any:
    """A trial for Optuna. One that diverged is the worst of all: pruned, without a value from its way."""
    library = optuna()
    states = library.trial.TrialState
    return library.trial.create_trial(
        state=states.COMPLETE if trial.state == COMPLETE else states.PRUNED,
        value=trial.score,
        params=trial.values,
        distributions=_distributions(ranges),
        intermediate_values={} if trial.state == DIVERGED else trial.curve,
        user_attrs={
            'state': trial.state,
            'curve': {str(number): value for number, value in trial.curve.items()},
            'rounds': trial.rounds,
            'run': trial.run,
            'key': trial.key,
            'why': trial.why,
        },
    )


def _distributions(ranges: Mapping[str, Range]) -> dict[str, Any]:
    return {key: _distribution(range_) for key, range_ in ranges.items()}


def _distribution(range_: Range) -> Any:
    kinds = optuna().distributions
    if range_.scale == 'choice':
        return kinds.CategoricalDistribution(range_.values)
    integers = isinstance(range_.low, int) and isinstance(range_.high, int)
    kind = kinds.IntDistribution if integers else kinds.FloatDistribution
    return kind(range_.low, range_.high, log=range_.scale == 'log')


def _rounded(value: Any, range_: Range) -> Any:
    if type(value) is not float or range_.scale == 'choice':
        return value
    return min(max(float(f'{value:.{DIGITS}g}'), range_.low), range_.high)


# Validation scores of the runs of trials, finished or not.

STOPS = 4  # a trial can be stopped after a quarter, half and three quarters of its rounds


class Judge(NamedTuple):
    """The number by which the trials of a method are judged."""

    key: str  # in metrics.jsonl
    score: Score


def judge_by(key: str) -> Judge:
    """By its key in metrics.jsonl."""
    headline = tasks.split_key(key)
    assert headline is not None, key  # one that `key_of` returned
    return Judge(key, headline.score)


def key_of(folder: Path) -> str:
    """The key by which the finished run in a folder is judged.

    Raises:
      UserError: there is no finished run.
    """
    return runs.read(runs.trials(folder)[0]).key


def running_scores(folder: Path, seeds: Sequence[int], key: str) -> dict[int, float]:
    """Round -> score up to there: the mean over seeds of the means over the last ten evaluations. Only rounds that have
    been evaluated in the runs of all seeds.

    Raises:
      UserError: a metrics.jsonl that no run wrote.
    """
    curves = [_running(metrics.read(home / 'metrics.jsonl'), key) for home in _folders(folder, seeds)]
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {number: sum(curve[number] for curve in curves) / len(curves) for number in shared}


def stop_rounds(rounds: int, evaluated: int) -> list[int]:
    """The rounds, of `rounds` in all, after which a trial can be stopped: with an evaluation every `evaluated` rounds,
    the first ones from a quarter, half and three quarters on."""
    wanted = [-(-rounds * part // STOPS) for part in range(1, STOPS)]
    found = [-(-number // evaluated) * evaluated for number in wanted]
    return sorted({number for number in found if number < rounds})


def _folders(folder: Path, seeds: Sequence[int]) -> list[Path]:
    return [folder / f'seed_{seed}' for seed in seeds] if len(seeds) > 1 else [folder]


def _running(records: Sequence[dict[str, Any]], key: str) -> dict[int, float]:
    values: list[float] = []
    means = {}
    for record in records:
        if record.get(key) is not None:
            values.append(record[key])
            last = values[-LAST:]
            means[record['round']] = sum(last) / len(last)
    return means


# What the trials of a sweep have found.


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
        trials = ended_trials(storage, entry.title)[: sweep.trials]
        judge = judge_by(trials[0].key) if trials else None
        results.append(Result(entry, trials, judge))
    return results


def whole(sweep: Sweep, results: Sequence[Result]) -> bool:
    """Whether all trials of all methods have ended."""
    return all(len(result.trials) == sweep.trials for result in results)


def tuned_settings(sweep: Sweep, results: Sequence[Result], home: Path) -> Tuned:
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
        optuna=version(),
        methods=tuple(_found(sweep, result) for result in results),
    )


def provenance(result: Result, home: Path) -> list[dict[str, str]]:
    """Commits and machines of the runs of a method, without duplicates."""
    entries: list[dict[str, str]] = []
    for trial in result.trials:
        made = collect.read_provenance(home / studies_plan.RUNS / trial.run)
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
        settings=spec.settings(sweep, chosen.values),
        trial=number,
        validation=chosen.score,
        untuned=spec.settings(sweep, first.values),
        untuned_validation=first.score,
        trials=len(result.trials),
        states=result.states(),
        ranges={key: range_.text for key, range_ in entry.ranges.items()},
        run=chosen.run,
    )


# One trial: the settings it has, when it stops early, and how it ended.


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
        return trial_name(self.entry, len(self.done))

    @property
    def folder(self) -> Path:
        """Of its run."""
        return self.home / RUNS / self.job.name


def trial_name(entry: Entry, number: int) -> str:
    """'SemiSFL, trial 3'."""
    return f'{entry.title}, trial {number}'


def next_case(sweep: Sweep, entry: Entry, done: list[Trial], home: Path) -> Case:
    """The next trial of a method: the first has the values of the configuration."""
    judge = judge_by(done[0].key) if done else None
    values = (
        propose(done, entry.ranges, judge.score.higher_is_better, sweep.seed, entry.title)
        if judge
        else spec.untuned(sweep, entry)
    )
    return Case(sweep, entry, done, judge, values, spec.job(sweep, entry, values), home)


def stopped_after(case: Case) -> int:
    """The round after which a trial stops early, 0 if none of those that its run has made so far.

    The first trial of a method never does.
    """
    if case.judge is None or not case.sweep.prune:
        return 0
    curve = _at_stops(case, case.judge)
    for at in curve:
        so_far = {number: value for number, value in curve.items() if number <= at}
        if is_behind(case.done, case.entry.ranges, case.judge.score.higher_is_better, case.values, so_far):
            return at
    return 0


def ended_trial(case: Case, failed: execute.Failed | None) -> tuple[Trial, Judge]:
    """The trial whose run is over, and the number by which it was judged.

    Args:
      case: the trial.
      failed: how its run failed, None if it did not.

    Raises:
      UserError: it failed otherwise than because its numbers were not finite; or it is the first, and did.
    """
    at = stopped_after(case)
    if failed and not at and (failed.status != Diverged.status or case.judge is None):
        log = case.home / execute.LOGS / f'{case.job.name}.log'
        raise UserError(f'{case.name}: {failed.line} (output in {log}); the same command tries it again')
    judge = case.judge or judge_by(key_of(case.folder))
    if failed and not at:
        curve = running_scores(case.folder, case.sweep.seeds, judge.key)
        why = finite.without_advice(failed.line)
        return Trial(case.values, DIVERGED, None, {}, max(curve, default=0), case.job.name, judge.key, why), judge
    curve = _at_stops(case, judge)
    if at:
        curve = {number: value for number, value in curve.items() if number <= at}
        return Trial(case.values, PRUNED, None, curve, at, case.job.name, judge.key), judge
    last = case.job.rounds
    score = running_scores(case.folder, case.sweep.seeds, judge.key).get(last)
    if score is None:
        raise UserError(f'{case.name}: {case.folder} has no {judge.key} after round {last}; remove that folder')
    return Trial(case.values, COMPLETE, score, curve, last, case.job.name, judge.key), judge


def _at_stops(case: Case, judge: Judge) -> dict[int, float]:
    """The curve so far, at the rounds after which trials can stop."""
    curve = running_scores(case.folder, case.sweep.seeds, judge.key)
    return {at: curve[at] for at in stop_rounds(case.job.rounds, case.sweep.config.eval_every) if at in curve}
