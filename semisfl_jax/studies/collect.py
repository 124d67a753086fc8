"""Collects the results of finished runs for the cells of a study."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax import runs, tasks
from semisfl_jax.core import atomic_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.runs import Run
from semisfl_jax.studies import plan
from semisfl_jax.studies.spec import Measure, Study
from semisfl_jax.training import metrics, outputs

PROVENANCE = 'provenance.json'  # in the folder of a run: the machines and commits it was made with
ENTRY = {'commit', 'machine'}  # keys of its entries
CellKey = tuple[str, str, str]  # title of a table, row, column
LAST = 10  # rounds over which pseudo-labels are averaged, and evaluations over which accuracies are


class CellResult(NamedTuple):
    """The available results of a cell."""

    runs: dict[int, Run]  # by seed, finished ones
    seeds: tuple[int, ...]  # requested by the cell
    jobs: list[plan.Job]
    missing: str  # why runs are missing, '' if none is
    made: list[dict[str, str]]  # provenance of its finished runs, without duplicates
    reference: Mapping[int, Run] = MappingProxyType({})  # those of the row that its measure is a gain over
    faults: Mapping[str, str] = MappingProxyType({})  # name of a finished job -> what is wrong with its files

    @property
    def modified(self) -> str:
        """'modified after the run: seeds 0, 2', of files that are not what the runs wrote; '' if there are none."""
        seeds = sorted(seed for runs in (self.runs, self.reference) for seed in runs if runs[seed].modified)
        names = list(dict.fromkeys(map(str, seeds)))
        return f'modified after the run: seed{"s" * (len(names) > 1)} {", ".join(names)}' if names else ''

    @property
    def state(self) -> str:
        """'done', or why runs are missing, and which were modified."""
        return '; '.join(filter(None, (self.missing or 'done', self.modified)))


def find(study: Study, root: Path, faults: Mapping[str, str]) -> dict[CellKey, CellResult]:
    """Reads all available results of a study.

    Args:
      study: with command-line changes applied.
      root: of studies.
      faults: name of a job -> the error line with which it failed.

    Returns:
      (title of the table, row, column) -> available results of the cell.
    """
    read: dict[str, tuple[dict[int, Run], list[dict[str, str]], str]] = {}
    results = {}
    for title, cell in [(table.title, cell) for table in study.tables for cell in table.cells]:
        jobs = plan.jobs_of(cell)
        members: dict[int, Run] = {}
        made, missing, damaged = [], [], {}
        for job in jobs:
            if job.name not in read:
                read[job.name] = _read(root / plan.RUNS / job.name, job)
            job_runs, job_entries, fault = read[job.name]
            members |= job_runs
            made += [entry for entry in job_entries if entry not in made]
            if not job_runs:
                missing.append(faults.get(job.name, fault))
            if fault:
                damaged[job.name] = fault
        if cell.measure.trivial:
            members = {seed: run.trivial(cell.measure.trivial) for seed, run in members.items()}
        seeds = tuple(seed for job in jobs for seed in job.seeds)
        results[title, cell.row, cell.column] = CellResult(members, seeds, jobs, _why(missing), made, faults=damaged)
    for table in study.tables:
        for cell in table.cells:
            if row := cell.measure.reference:
                place = (table.title, cell.row, cell.column)
                results[place] = _beside(results[place], results[table.title, row, cell.column], row)
    return results


def damaged(found: Mapping[CellKey, CellResult]) -> dict[str, str]:
    """What is wrong with the files of finished runs, by job."""
    return {name: fault for result in found.values() for name, fault in result.faults.items()}


def _beside(result: CellResult, other: CellResult, row: str) -> CellResult:
    """The results of a cell that is a gain over `row`, with those of that row."""
    missing = result.missing or (other.missing and f'{row}: {other.missing}')
    return result._replace(reference=other.runs, missing=missing)


def _why(missing: list[str]) -> str:
    if not missing:
        return ''
    reasons = sorted({line for line in missing if line})
    return f'failed: {"; ".join(reasons)}' if reasons else 'not run yet'


def _read(folder: Path, job: plan.Job) -> tuple[dict[int, Run], list[dict[str, str]], str]:
    """The runs of a job by seed, their provenance, and what is wrong with them; all empty until the job is finished."""
    summary = outputs.finished(folder, job.rounds)
    if summary is None:
        return {}, [], ''
    try:
        members = {run.seed: run for run in (runs.read(trial) for trial in runs.trials(folder))}
        made = provenance(folder) or [{'commit': 'unknown', 'machine': 'unknown'}]
    except UserError as error:
        return {}, [], str(error)
    if lacking := ', '.join(str(seed) for seed in job.seeds if seed not in members):
        return (
            {},
            [],
            f'{folder} has no run of seed {lacking}; restore it from a copy, or delete the folder to run again',
        )
    return members, [{**entry, 'device': summary.get('device', 'unknown device')} for entry in made], ''


def provenance(folder: Path) -> list[dict[str, str]]:
    """Commits and machines that contributed to a run; empty if not recorded.

    Raises:
      UserError: provenance.json has invalid content.
    """
    file = folder / PROVENANCE
    if not os.path.lexists(file):
        return []
    entries = atomic_io.parse(atomic_io.content(file), str(file))
    valid = isinstance(entries, list) and all(isinstance(entry, dict) and entry.keys() == ENTRY for entry in entries)
    if not valid or not all(isinstance(text, str) for entry in entries for text in entry.values()):
        raise UserError(f'{file} is not a list of commits and machines; delete it, or restore it from a copy')
    return entries


def _evaluated(run: Run) -> list[float]:
    """The scores of a run, where they are defined."""
    return [record[run.key] for record in run.records if record.get(run.key) is not None]


def _accuracy(run: Run, target: float) -> float | None:
    values = _evaluated(run)
    return run.score.scale * values[-1] if values else None


def _late_accuracy(run: Run, target: float) -> float | None:
    values = _evaluated(run)[-LAST:]
    return run.score.scale * sum(values) / len(values) if values else None


def _reached(run: Run, target: float) -> dict[str, Any] | None:
    """The record of the first evaluated round that reaches the target, None if none does."""
    evaluated = (record for record in run.records if record.get(run.key) is not None)
    return next((record for record in evaluated if record[run.key] >= target), None)


def _accuracy_after(run: Run, target: float) -> float | None:
    """After round `target`."""
    value = next((r.get(run.key) for r in run.records if r['round'] == target), None)
    return None if value is None else run.score.scale * value


def _rounds(run: Run, target: float) -> float | None:
    """The first evaluated round that reaches the target, None if none does."""
    record = _reached(run, target)
    return record['round'] if record else None


def _on_the_way(price: Callable[[dict[str, Any]], float]) -> Callable[[Run, float], float | None]:
    """Reads a price at the first evaluation that reaches the target, None if none does.

    The studies of Fig. 5 and 6 evaluate after every round, so there it is the first such round; on MNIST, every fifth.
    """

    def read(run: Run, target: float) -> float | None:
        record = _reached(run, target)
        return price(record) if record and metrics.COSTS[0] in record else None

    return read


def _gigabytes(record: dict[str, Any]) -> float:
    return (record['bytes_up'] + record['bytes_down']) / metrics.GIB


def _all_traffic(run: Run, target: float) -> float | None:
    return _gigabytes(run.records[-1]) if metrics.COSTS[0] in run.records[-1] else None


def _lacking(key: str) -> Callable[[Run, float], float | None]:
    """100 % minus the mean of a share over the last rounds that have it."""

    def read(run: Run, target: float) -> float | None:
        values = [record[key] for record in run.records if record.get(key) is not None][-LAST:]
        return 100.0 * (1.0 - sum(values) / len(values)) if values else None

    return read


def _last(key: str, scale: float) -> Callable[[Run, float], float | None]:
    """The last value of a score, which is that after the last round."""

    def read(run: Run, target: float) -> float | None:
        values = [record[key] for record in run.records if record.get(key) is not None]
        return scale * values[-1] if values else None

    return read


def _deviation(run: Run, runs: Sequence[Run]) -> float | None:
    """Of one seed among `runs` of all, the root mean square over rounds.

    The root mean square of that over seeds is the one over rounds of the standard deviation that figures show.
    """
    tables = [
        {record['round']: record[of.key] for record in of.records if record.get(of.key) is not None} for of in runs
    ]
    rounds = sorted(set.intersection(*map(set, tables)))
    if len(runs) < 2 or not rounds:
        return None
    scores = run.score.scale * np.array([[table[number] for number in rounds] for table in tables])
    own = scores[next(index for index, of in enumerate(runs) if of is run)]
    return float(np.sqrt(np.mean((own - scores.mean(axis=0)) ** 2)))


def _delta_m(run: Run, reference: Run) -> float | None:
    """Over another run, in all tasks of the run."""
    scores, others = {}, {}
    for name in run.settings['data.tasks']:
        score, other = (TASKS[name].read(of, 0.0) for of in (run, reference))
        if score is None or not other:  # of 0, there is no relative gain
            return None
        scores[name], others[name] = score, other
    return tasks.delta_m(scores, others, {name: tasks.score(name).higher_is_better for name in scores})


class Kind(NamedTuple):
    """A quantity of a run."""

    title: str
    unit: str
    # run, target -> value, None if the run has none; for a measure with a reference: run, the reference's run; for
    # 'spread': run, the runs of all seeds
    read: Callable[[Run, Any], float | None]
    group: str = ''  # kinds of one group stand in one figure, under its name; '': each in its own


def _of_task(name: str) -> Kind:
    score = tasks.score(name)
    read = _last(tasks.score_key(name, score.name), score.scale)
    group = 'score after the last round' if score.percent else ''
    return Kind(f'{name} {score.label} after the last round', score.unit or 'of the range', read, group)


TASKS = {name: _of_task(name) for name in tasks.DENSE}


KINDS = {
    'accuracy': Kind('test accuracy after the last round', '%', _accuracy),
    'late_accuracy': Kind(f'test accuracy, mean of the last {LAST} evaluations', '%', _late_accuracy),
    'accuracy_after': Kind('test accuracy after T rounds', '%', _accuracy_after),
    'loss': Kind('objective F of all clients after the last round', 'nats', _last('loss_global', 1.0)),
    'spread': Kind('deviation of the accuracy from the mean of the seeds', 'points', _deviation),
    'rounds': Kind('rounds to a target accuracy', 'rounds', _rounds),
    'minutes': Kind(
        'simulated minutes to a target accuracy', 'min', _on_the_way(lambda r: r['simulated_seconds'] / 60.0)
    ),
    'gigabytes': Kind('traffic to a target accuracy', 'GiB', _on_the_way(_gigabytes)),
    'all_gigabytes': Kind('traffic of the whole run', 'GiB', _all_traffic),
    'masked_out': Kind(f'pseudo-labels below the threshold, last {LAST} rounds', '%', _lacking('mask_rate')),
    **{tasks.score_key(name, tasks.score(name).name): kind for name, kind in TASKS.items()},
    'delta_m': Kind('Delta_m, the mean relative gain over tasks', '%', _delta_m),
    'impurity': Kind(f'wrong among the confident, last {LAST} rounds', '%', _lacking('pseudo_label_accuracy')),
}


def values(result: CellResult, measure: Measure) -> dict[int, float]:
    """Seed -> value, for the seeds that have one."""
    read = KINDS[measure.kind].read
    seeds = sorted(result.runs.keys() & result.reference.keys() if measure.reference else result.runs)
    second: Mapping[int, Any] = dict.fromkeys(seeds, measure.target)
    if measure.reference:
        second = result.reference
    elif measure.kind == 'spread':
        second = {seed: list(map(result.runs.__getitem__, seeds)) for seed in seeds}
    all_ = {seed: read(result.runs[seed], second[seed]) for seed in seeds}
    return {seed: value for seed, value in all_.items() if value is not None}
