"""What a study reads off finished runs: accuracies, costs until a target, shares of pseudo-labels, scores of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax import tasks
from semisfl_jax.algorithms import feddure
from semisfl_jax.runs import Run
from semisfl_jax.training import metrics
from semisfl_jax.training.evaluation import GLOBAL_LOSS


class Kind(NamedTuple):
    """A quantity of a run."""

    title: str
    unit: str
    # run, target -> value, None if the run has none; for a measure with a reference: run, the reference's run; for
    # 'spread': run, the runs of all seeds
    read: Callable[[Run, Any], float | None]
    group: str = ''  # kinds of one group stand in one figure, under its name; '': each in its own


def _mean(run: Run, key: str, last: int, scale: float = 1.0) -> float | None:
    """Of a key of metrics.jsonl over the `last` rounds that have it; 0: over all."""
    values = [record[key] for record in run.records if record.get(key) is not None][-last:]
    return scale * sum(values) / len(values) if values else None


def _mean_of(key: str, last: int, scale: float = 1.0) -> Callable[[Run, Any], float | None]:
    return lambda run, _: _mean(run, key, last, scale)


def _accuracy(last: int) -> Callable[[Run, Any], float | None]:
    return lambda run, _: _mean(run, run.key, last, run.score.scale)


def _lacking(key: str) -> Callable[[Run, Any], float | None]:
    """100 % minus a share."""
    return lambda run, _: None if (mean := _mean(run, key, metrics.LAST)) is None else 100.0 * (1.0 - mean)


def _accuracy_after(run: Run, target: float) -> float | None:
    """After round `target`."""
    value = next((record.get(run.key) for record in run.records if record['round'] == target), None)
    return None if value is None else run.score.scale * value


def _until(price: Callable[[dict[str, Any]], float], needs: str) -> Callable[[Run, float], float | None]:
    """A price at the first evaluation that reaches the target; None if none does, or its record lacks `needs`."""

    def read(run: Run, target: float) -> float | None:
        evaluated = (record for record in run.records if record.get(run.key) is not None)
        record = next((record for record in evaluated if record[run.key] >= target), None)
        return price(record) if record and needs in record else None

    return read


def _gigabytes(record: dict[str, Any]) -> float:
    return (record['bytes_up'] + record['bytes_down']) / metrics.GIB


def _all_gigabytes(run: Run, _: Any) -> float | None:
    return _gigabytes(run.records[-1]) if 'bytes_up' in run.records[-1] else None


def _deviation(run: Run, runs: Sequence[Run]) -> float | None:
    """Of one seed from the mean of all `runs`, the root mean square over rounds; over seeds, its root mean square is
    that over rounds of the standard deviation that figures show."""
    curves = [{record['round']: record[r.key] for record in r.records if record.get(r.key) is not None} for r in runs]
    rounds = sorted(set.intersection(*map(set, curves)))
    if len(runs) < 2 or not rounds:
        return None
    scores = run.score.scale * np.array([[curve[number] for number in rounds] for curve in curves])
    mine = scores[next(index for index, other in enumerate(runs) if other is run)]
    return float(np.sqrt(np.mean((mine - scores.mean(axis=0)) ** 2)))


def _delta_m(run: Run, reference: Run) -> float | None:
    """Over another run, in all tasks of the run; None where a task has no score, or a reference of 0."""
    scores, others = {}, {}
    for name in run.settings['data.tasks']:
        score, other = (_TASKS[name].read(of, None) for of in (run, reference))
        if score is None or not other:
            return None
        scores[name], others[name] = score, other
    return tasks.delta_m(scores, others, {name: tasks.score(name).higher_is_better for name in scores})


def _of_task(name: str) -> Kind:
    score = tasks.score(name)
    group = 'score after the last round' if score.percent else ''
    read = _mean_of(tasks.score_key(name, score.name), 1, score.scale)
    return Kind(f'{name} {score.label} after the last round', score.unit or 'of the range', read, group)


_TASKS = {name: _of_task(name) for name in tasks.DENSE}
_WEIGHT = 'mean weight of pseudo-labels'
_WEIGHTS = [f'weight_{kind}_visit_{first}' for kind in ('right', 'wrong') for first in feddure.VISITS]
KINDS = {
    'accuracy': Kind('test accuracy after the last round', '%', _accuracy(1)),
    'late_accuracy': Kind(f'test accuracy, mean of the last {metrics.LAST} evaluations', '%', _accuracy(metrics.LAST)),
    'accuracy_after': Kind('test accuracy after T rounds', '%', _accuracy_after),
    'loss': Kind('objective F of all clients after the last round', 'nats', _mean_of(GLOBAL_LOSS, 1)),
    'spread': Kind('deviation of the accuracy from the mean of the seeds', 'points', _deviation),
    'rounds': Kind('rounds to a target accuracy', 'rounds', _until(lambda record: record['round'], 'round')),
    'minutes': Kind(
        'simulated minutes to a target accuracy',
        'min',
        _until(lambda record: record['simulated_seconds'] / 60.0, 'simulated_seconds'),
    ),
    'gigabytes': Kind('traffic to a target accuracy', 'GiB', _until(_gigabytes, 'bytes_up')),
    'all_gigabytes': Kind('traffic of the whole run', 'GiB', _all_gigabytes),
    'masked_out': Kind(f'pseudo-labels below the threshold, last {metrics.LAST} rounds', '%', _lacking('mask_rate')),
    **{tasks.score_key(name, tasks.score(name).name): kind for name, kind in _TASKS.items()},
    'delta_m': Kind('Delta_m, the mean relative gain over tasks', '%', _delta_m),
    **{key: Kind(f'{_WEIGHT}, all rounds that have any', '%', _mean_of(key, 0, 100.0), _WEIGHT) for key in _WEIGHTS},
    'impurity': Kind(f'wrong among the confident, last {metrics.LAST} rounds', '%', _lacking('pseudo_label_accuracy')),
}
# Of which differences, where they are in percent, say how many seeds one of a point needs
_ACCURACIES = {'accuracy', 'late_accuracy', 'accuracy_after'}
SCORES = _ACCURACIES | {name for name, kind in KINDS.items() if kind in _TASKS.values()}
