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

from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.core import atomic_io, rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import metrics

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
        metrics.truncate(file, len(whole))
    backend = importlib.import_module('optuna.storages.journal').JournalFileBackend(str(file), lock_obj=_Held())
    try:
        for line in whole:
            json.loads(line)  # Optuna forgives the last one, until it has written another behind it
        return library.storages.JournalStorage(backend)
    except Exception as error:  # whatever Optuna finds in a line that it did not write
        raise UserError(f'{file} is damaged ({error}); restore it from a copy, or remove it: runs are kept') from error


def trials(storage: Any, name: str) -> list[Trial]:
    """The ended trials of a method, in order.

    Raises:
      UserError: there is one that something else has added.
    """
    library = optuna()
    if name not in library.get_all_study_names(storage):
        return []
    study = library.load_study(study_name=name, storage=storage)
    try:
        return [_trial(frozen) for frozen in study.get_trials(deepcopy=False)]
    except KeyError as error:
        raise UserError(
            f"{JOURNAL} in the sweep's folder has a trial of {name} that this version of the package did not write; "
            'restore it from a copy, or remove that folder: the runs, which are not in it, are used again'
        ) from error


def _trial(frozen: Any) -> Trial:
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


def stops(
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
