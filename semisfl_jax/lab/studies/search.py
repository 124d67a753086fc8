"""Searches: which settings the next trial of a sweep has, whether it stops early, how it ended, and what remembers it.

Trials are proposed in batches, those of a batch at once. A proposal depends on the trials before its batch, the seed of
the search and the number of the trial alone, and only ended trials are written down, so that a search that was killed,
or that several processes divide, proposes the same. Whether a trial stops early depends on its validation scores after
certain rounds and on the trials before its batch, not on when somebody looked; rounds beyond them do not count.
"""

import hashlib
import json
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import semisfl_jax as sfl
from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import Diverged, UserError, without_advice
from semisfl_jax.lab.studies import plan as plans
from semisfl_jax.lab.studies import results, sweeps, tuned
from semisfl_jax.lab.studies.plan import Failed, Job, Task
from semisfl_jax.lab.studies.sweeps import Entry, Sweep
from semisfl_jax.tasks import LAST, Score, split_key

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
    number: int  # of the method's trials, from 0
    why: str = ''  # it diverged


class Result(NamedTuple):
    """The ended trials of a method, up to the first that has not ended."""

    entry: Entry
    trials: list[Trial]

    @property
    def score(self) -> Score:
        """The score that ranks trials, once one has ended."""
        return score_of(self.trials[0].key)

    @property
    def best(self) -> int | None:
        """The number of the best complete trial, of equal ones the first; None before the first has ended."""
        scores = {number: trial.score for number, trial in enumerate(self.trials) if trial.score is not None}
        sign = 1 if scores and self.score.higher_is_better else -1
        return max(scores, key=lambda number: sign * scores[number], default=None)

    def states(self) -> dict[str, int]:
        """Counts the trials by how they ended."""
        return {state: sum(trial.state == state for trial in self.trials) for state in STATES}


class Search(NamedTuple):
    """The search of a sweep, which its journal remembers."""

    sweep: Sweep
    journal: Path
    runs: Path  # folder of the folders of its runs

    def results(self) -> list[Result]:
        """Reads the trials of every method that have ended, at most as many as the sweep has."""
        return [result for result, _ in self._ended()]

    def tasks(self) -> list[Task]:
        """Lists the trials that are due, the rest of the batch of every method; methods with the fewest ended first."""
        lacking = [each for each in self._ended() if len(each[0].trials) < self.sweep.trials]
        by_number = sorted(lacking, key=lambda each: len(each[0].trials))
        return [task for result, ended in by_number for task in self._batch(result, ended)]

    def _ended(self) -> list[tuple[Result, set[int]]]:
        """Reads the trials of every method that have ended, and the numbers of all, also after one that has not."""
        storage, results = _storage(self.journal), []
        for entry in self.sweep.entries:
            trials = {trial.number: trial for trial in _trials(storage, entry.title)}
            whole = range(self.sweep.trials)
            first = next((number for number in whole if number not in trials), len(whole))
            results.append((Result(entry, [trials[number] for number in range(first)]), {*trials}))
        return results

    def _batch(self, result: Result, ended: Collection[int]) -> list[Task]:
        """Lists the trials of the first batch of a method that has not ended; the first one is a batch of its own."""
        size, count = self.sweep.batch, len(result.trials)
        start = count and 1 + (count - 1) // size * size
        end = min(start + size, self.sweep.trials) if start else 1
        done = result.trials[:start]
        return [self._task(result.entry, done, number) for number in range(start, end) if number not in ended]

    def _task(self, entry: Entry, done: Sequence[Trial], number: int) -> Task:
        sweep = self.sweep
        values = _propose(done, entry, sweep.seed, number) if done else sweeps.untuned(sweep, entry)
        job = plans.trial_job(sweep, entry, values)
        name = f'{entry.title}, trial {number}'

        def should_stop() -> int:
            return _stop_round(self, done, job) if sweep.prune else 0

        def record(failed: Failed | None) -> str:
            at = should_stop()
            if failed and not at and (failed.status != Diverged.status or not done):
                raise UserError(f'{name}: {failed.line} (output in {failed.log}); the same command tries it again')
            trial = _ended(self, done, number, values, job, at, without_advice(failed.line) if failed else '')
            self._append(entry, trial)
            score = score_of(trial.key)
            outcome = f'validation {score.label} {score.text(trial.score)}' if trial.state == COMPLETE else trial.why
            return outcome or f'stopped after round {trial.rounds}'

        words = ', '.join(f'{key}={value}' for key, value in values.items())
        return Task(job, f'{name}: {words}', record, should_stop)

    def _append(self, entry: Entry, trial: Trial) -> None:
        """Writes down a trial of a method; others of this sweep wait so long."""
        with file_io.lock(self.journal.with_name('.lock'), wait=True):
            content = file_io.read(self.journal)
            if content and not content.endswith(b'\n'):  # a kill truncated the last line
                file_io.write(self.journal, content[: content.rfind(b'\n') + 1])
            names = {'study_name': entry.title, 'storage': _storage(self.journal)}
            study = optuna().create_study(**names, load_if_exists=True, direction=_direction(trial))
            study.add_trial(_frozen(trial, entry.ranges))

    def scores(self, job: Job, key: str) -> dict[int, float]:
        """Computes the score of a job, finished or not, up to every round.

        Args:
          job: the job of a trial.
          key: of the score in metrics.jsonl.

        Returns:
          By round that all seeds have evaluated, the mean over seeds of the means over the last ten evaluations.
        """
        folder, curves = self.runs / job.name, []
        for home in [folder / f'seed_{seed}' for seed in job.seeds] if len(job.seeds) > 1 else [folder]:
            scores = {line['round']: line[key] for line in sfl.runs.records(home) if line.get(key) is not None}
            values = [*scores.values()]
            means = [sum(values[max(0, n - LAST) : n]) / min(n, LAST) for n in range(1, len(values) + 1)]
            curves.append(dict(zip(scores, means, strict=True)))
        shared = sorted(set.intersection(*map(set, curves)))
        return {number: sum(curve[number] for curve in curves) / len(curves) for number in shared}

    def at_stops(self, scores: Mapping[int, float]) -> dict[int, float]:
        """Returns those of the `scores` by round after which a trial can stop."""
        stops = stop_rounds(self.sweep.config.rounds, self.sweep.config.eval_every)
        return {number: scores[number] for number in stops if number in scores}


def start(sweep: Sweep, folder: Path, runs: Path) -> Search:
    """Begins or continues the search of a sweep.

    The journal is named after all that a trial depends on, so that another search begins anew, with the runs that are
    there.

    Args:
      sweep: the sweep.
      folder: folder of its report.
      runs: folder of the folders of its runs.
    """
    definition: list[Any] = [sweep.seed, sweep.prune, sweep.batch]
    for entry in sweep.entries:
        texts = {key: range_.text for key, range_ in entry.ranges.items()}
        definition += [entry.title, plans.trial_job(sweep, entry, sweeps.untuned(sweep, entry)).name, texts]
    mark = hashlib.sha256(json.dumps(definition).encode()).hexdigest()[:6]
    return Search(sweep, folder / f'optuna-{mark}.journal', runs)


def _stop_round(search: Search, done: Sequence[Trial], job: Job) -> int:
    """Returns the round after which a trial stops early, 0 if none of those that its job has made so far.

    There, its best score is behind the median of the complete trials.
    """
    complete = [trial for trial in done if trial.state == COMPLETE]
    if len(complete) < RANDOM_TRIALS:
        return 0
    better = max if score_of(done[0].key).higher_is_better else min
    curve = search.at_stops(search.scores(job, done[0].key))
    for at in curve:
        best = better(value for number, value in curve.items() if number <= at)
        middle = np.median([trial.curve[at] for trial in complete if at in trial.curve] or [best])
        if best != middle and better(best, middle) == middle:
            return at
    return 0


def _ended(
    search: Search, done: Sequence[Trial], number: int, values: dict[str, Any], job: Job, stopped: int, fault: str
) -> Trial:
    """Returns the trial whose job is over: `stopped` after that round, or diverged by a `fault`, or else complete."""
    folder, last = search.runs / job.name, job.rounds
    key = done[0].key if done else sfl.runs.read_run(sfl.runs.trials(folder)[0]).key
    scores = search.scores(job, key)
    curve = search.at_stops(scores)
    if stopped:
        so_far = {at: value for at, value in curve.items() if at <= stopped}
        return Trial(values, PRUNED, None, so_far, stopped, job.name, key, number)
    if fault:
        return Trial(values, DIVERGED, None, {}, max(scores, default=0), job.name, key, number, fault)
    if last not in scores:
        raise UserError(f'{folder} has no {key} after round {last}; remove that folder')
    return Trial(values, COMPLETE, scores[last], curve, last, job.name, key, number)


def score_of(key: str) -> Score:
    """Returns the score under a key of metrics.jsonl."""
    headline = split_key(key)
    assert headline is not None, key
    return headline.score


def stop_rounds(rounds: int, eval_every: int) -> list[int]:
    """Returns the rounds after which a trial can be stopped.

    Args:
      rounds: of a trial.
      eval_every: rounds between evaluations; the first ones from a quarter, half and three quarters on count.
    """
    wanted = [-(-rounds * part // STOPS) for part in range(1, STOPS)]
    evaluated = [-(-number // eval_every) * eval_every for number in wanted]
    return sorted({number for number in evaluated if number < rounds})


# --- Optuna and its journal


def optuna() -> Any:
    """Imports the library, without its messages."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _storage(journal: Path) -> Any:
    """Opens a journal for Optuna; who appends to it holds the lock of its folder."""
    library = optuna().storages
    backend = library.journal.JournalFileBackend(str(journal), lock_obj=threading.Lock())
    return library.JournalStorage(backend)


def _trials(storage: Any, title: str) -> list[Trial]:
    """Reads the ended trials of a method."""
    library = optuna()
    if title not in library.get_all_study_names(storage):
        return []
    frozen = library.load_study(study_name=title, storage=storage).get_trials(deepcopy=False)
    trials = [Trial(**each.user_attrs['trial']) for each in frozen]
    return [trial._replace(curve={int(number): value for number, value in trial.curve.items()}) for trial in trials]


def _propose(done: Sequence[Trial], entry: Entry, seed: int, number: int) -> dict[str, Any]:
    """Returns the values of a trial of a method, by key; `seed`: of the search."""
    stream = sfl.rng.host(seed, 'sweep', entry.title, number)
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
    """Returns the share of each key in the variance of the score (fANOVA), largest first; {} of too few trials."""
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
    """Returns the ended trials, at least one, as a study in memory, which nothing asked of it changes on disk."""
    study = optuna().create_study(direction=_direction(done[0]), sampler=sampler)
    study.add_trials([_frozen(trial, ranges) for trial in done])
    return study


def _frozen(trial: Trial, ranges: Mapping[str, Range]) -> Any:
    """Returns a trial for Optuna. One that diverged is the worst of all: pruned, without a value from its way."""
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
    """Returns the ranges as Optuna has them, by key."""
    kinds, distributions = optuna().distributions, {}
    for key, range_ in ranges.items():
        if range_.scale == 'choice':
            distributions[key] = kinds.CategoricalDistribution(range_.values)
            continue
        integers = isinstance(range_.low, int) and isinstance(range_.high, int)
        kind = kinds.IntDistribution if integers else kinds.FloatDistribution
        distributions[key] = kind(range_.low, range_.high, log=range_.scale == 'log')
    return distributions


# --- for studies


def provenance(result: Result, runs: Path) -> list[dict[str, Any]]:
    """Reads commits and machines of the runs of a method; where a file is damaged, says so in their place."""
    entries = []
    for trial in result.trials:
        try:
            entries += results.read_provenance(runs / trial.run)
        except UserError:
            entries.append({'commit': f'unknown ({results.PROVENANCE} is damaged)', 'machine': 'unknown'})
    return entries


def tuned_settings(search: Search, ended: Sequence[Result]) -> tuned.Tuned:
    """Returns the result of a sweep whose trials have all ended, for studies."""
    sweep, score, methods = search.sweep, ended[0].score, []
    for result in ended:
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
    flat = sfl.flat(sweep.config)
    made = [entry['commit'] for result in ended for entry in provenance(result, search.runs)]
    return tuned.Tuned(
        sweep=sweep.name,
        scale=sweep.scale,
        score=score.label,
        percent=score.percent,
        seeds=sweep.seeds,
        about={key: flat[key] for key in tuned.ABOUT},
        commits=tuple(dict.fromkeys(made)),
        optuna=optuna().__version__,
        methods=tuple(methods),
    )
