"""What a study reads off finished runs: accuracies, costs until a target, shares of pseudo-labels, scores of tasks."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax import tasks
from semisfl_jax.algorithms import feddure
from semisfl_jax.lab.studies.spec import Measure
from semisfl_jax.runs import Run

CellKey = tuple[str, str, str]  # title of a table, row, column
Runs = Mapping[int, Run]  # by seed


class CellResult(NamedTuple):
    """What the runs of a cell have given."""

    runs: Runs  # finished ones
    values: Mapping[int, float]  # of its measure, by seed; only runs that have one
    missing: str  # why runs are missing, '' if none is
    provenance: Sequence[Mapping[str, Any]]  # commits and machines of the finished runs, without duplicates


Cells = Mapping[CellKey, CellResult]


class Kind(NamedTuple):
    """A quantity of a run."""

    title: str
    unit: str
    # run, target -> value, None if the run has none; for a measure with a reference: run, the reference's run; for
    # 'spread': run, the runs of all seeds
    read: Callable[[Run, Any], float | None]
    group: str = ''  # kinds of one group stand in one figure, under its name; '': each in its own
    best: Callable[[Sequence[float]], float] | None = None  # max or min; None: neither is better


def _mean(key: str, last: int, scale: float = 1.0) -> Callable[[Run, Any], float | None]:
    """Averages a key of metrics.jsonl over the `last` rounds that have it, 0: over all; '': the headline's score."""

    def read(run: Run, _: Any) -> float | None:
        values = [*run.curve(key or run.key).values()][-last:]
        return (scale if key else run.score.scale) * sum(values) / len(values) if values else None

    return read


def _lacking(key: str) -> Callable[[Run, Any], float | None]:
    """Subtracts a share from 100 %."""
    mean = _mean(key, tasks.LAST)
    return lambda run, _: None if (share := mean(run, None)) is None else 100.0 * (1.0 - share)


def _accuracy_after(run: Run, target: float) -> float | None:
    """Reads the score after round `target`."""
    value = run.curve(run.key).get(int(target))
    return None if value is None else run.score.scale * value


def _until(x: str) -> Callable[[Run, float], float | None]:
    """Reads one of `runs.AXES` at the first evaluation that reaches the target; None if none does."""

    def read(run: Run, target: float) -> float | None:
        first = next((number for number, score in run.curve(run.key).items() if score >= target), None)
        return None if first is None else run.axis(x).get(first)

    return read


def _deviation(run: Run, runs: Sequence[Run]) -> float | None:
    """Computes the root mean square over rounds of the deviation of a seed from the mean of all `runs`.

    Over seeds, its root mean square is that over rounds of the standard deviation that figures show.
    """
    curves = [other.curve(other.key) for other in runs]
    rounds = sorted(set.intersection(*map(set, curves)))
    if len(runs) < 2 or not rounds:
        return None
    scores = run.score.scale * np.array([[curve[number] for number in rounds] for curve in curves])
    mine = scores[next(index for index, other in enumerate(runs) if other is run)]
    return float(np.sqrt(np.mean((mine - scores.mean(axis=0)) ** 2)))


def _delta_m(run: Run, reference: Run) -> float | None:
    """Computes the gain over another run in all tasks; None where a task has no score, or a reference of 0."""
    scores, others = {}, {}
    for name in run.settings['data.tasks']:
        score, other = (_TASKS[name].read(each, None) for each in (run, reference))
        if score is None or not other:
            return None
        scores[name], others[name] = score, other
    return tasks.delta_m(scores, others, {name: tasks.smallest(name).score.higher_is_better for name in scores})


def _task(name: str) -> Kind:
    """Makes the kind of a task's score after the last round."""
    score = tasks.smallest(name).score
    group = 'score after the last round' if score.percent else ''
    read = _mean(tasks.score_key(name, score.name), 1, score.scale)
    return Kind(f'{name} {score.label} after the last round', score.unit or 'of the range', read, group, score.best)


_TASKS = {name: _task(name) for name in tasks.DENSE}
_WEIGHT = 'mean weight of pseudo-labels'
_WEIGHTS = [f'weight_{kind}_visit_{first}' for kind in ('right', 'wrong') for first in feddure.VISITS]
KINDS = {
    'accuracy': Kind('test accuracy after the last round', '%', _mean('', 1), best=max),
    'late_accuracy': Kind(
        f'test accuracy, mean of the last {tasks.LAST} evaluations', '%', _mean('', tasks.LAST), best=max
    ),
    'accuracy_after': Kind('test accuracy after T rounds', '%', _accuracy_after, best=max),
    'loss': Kind('objective F of all clients after the last round', 'nats', _mean(tasks.GLOBAL_LOSS, 1), best=min),
    'spread': Kind('deviation of the accuracy from the mean of the seeds', 'points', _deviation, best=min),
    'rounds': Kind('rounds to a target accuracy', 'rounds', _until('round'), best=min),
    'minutes': Kind('simulated minutes to a target accuracy', 'min', _until('minutes'), best=min),
    'gigabytes': Kind('traffic to a target accuracy', 'GiB', _until('gigabytes'), best=min),
    'all_gigabytes': Kind(
        'traffic of the whole run', 'GiB', lambda run, _: max(run.axis('gigabytes').values(), default=None)
    ),
    'masked_out': Kind(f'pseudo-labels below the threshold, last {tasks.LAST} rounds', '%', _lacking('mask_rate')),
    **{tasks.score_key(name, tasks.smallest(name).score.name): kind for name, kind in _TASKS.items()},
    'delta_m': Kind('Delta_m, the mean relative gain over tasks', '%', _delta_m, best=max),
    **{key: Kind(f'{_WEIGHT}, all rounds with such labels', '%', _mean(key, 0, 100.0), _WEIGHT) for key in _WEIGHTS},
    'impurity': Kind(
        f'error of confident pseudo-labels, last {tasks.LAST} rounds', '%', _lacking('pseudo_label_accuracy')
    ),
}
# Of which differences, where they are in percent, say how many seeds one of a point needs
_ACCURACIES = {'accuracy', 'late_accuracy', 'accuracy_after'}
SCORES = _ACCURACIES | {name for name, kind in KINDS.items() if kind in _TASKS.values()}


def values(measure: Measure, runs: Runs, reference: Runs = MappingProxyType({})) -> dict[int, float]:
    """Measures runs.

    Args:
      measure: what is read off them.
      runs: by seed.
      reference: runs by seed that a gain is over.

    Returns:
      The values by seed, of the seeds that have one.
    """
    seeds = sorted(runs.keys() & reference.keys() if measure.reference else runs)
    members = [runs[seed] for seed in seeds]
    beside = members if measure.kind == 'spread' else measure.target
    numbers = {
        seed: KINDS[measure.kind].read(runs[seed], reference[seed] if measure.reference else beside) for seed in seeds
    }
    return {seed: value for seed, value in numbers.items() if value is not None}
