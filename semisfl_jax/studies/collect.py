"""The finished runs of the cells of a study, and the machines and commits that they were made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from semisfl_jax import runs
from semisfl_jax.core import file_io, machine
from semisfl_jax.core.errors import UserError, count
from semisfl_jax.runs import Run
from semisfl_jax.studies import plan
from semisfl_jax.studies.measures import KINDS
from semisfl_jax.studies.spec import Measure, Study
from semisfl_jax.training import checkpoint, outputs

PROVENANCE = 'provenance.json'  # in the folder of a run
BUDGET_KEYS = ('hardware', 'commits', 'runs', 'hours_of_rounds', 'processor_hours')  # of budget.csv
CellKey = tuple[str, str, str]  # title of a table, row, column


class CellResult(NamedTuple):
    """The available results of a cell."""

    runs: dict[int, Run]  # by seed, finished ones
    seeds: tuple[int, ...]  # requested by the cell
    jobs: list[plan.Job]
    missing: str  # why runs are missing, '' if none is
    made: list[dict[str, Any]]  # provenance of its finished runs, without duplicates
    reference: Mapping[int, Run] = MappingProxyType({})  # those of the row that its measure is a gain over


def find(study: Study, root: Path, faults: Mapping[str, str]) -> dict[CellKey, CellResult]:
    """All available results of a study below the root of studies; `faults`: the error lines of failed jobs, by name."""
    read = {job.name: _read(root / plan.RUNS / job.name, job) for job in plan.jobs(study)}
    results = {}
    for title, cell in [(table.title, cell) for table in study.tables for cell in table.cells]:
        jobs = plan.jobs_of(cell)
        members: dict[int, Run] = {}
        made, reasons = [], []
        for job in jobs:
            job_runs, entries = read[job.name]
            members |= job_runs
            made += [entry for entry in entries if entry not in made]
            reasons += [] if job_runs else [faults.get(job.name, '')]
        if cell.measure.trivial:
            members = {seed: run.trivial(cell.measure.trivial) for seed, run in members.items()}
        seeds = tuple(seed for job in jobs for seed in job.seeds)
        failed = '; '.join(sorted({line for line in reasons if line}))
        missing = f'failed: {failed}' if failed else 'not run yet' if reasons else ''
        results[title, cell.row, cell.column] = CellResult(members, seeds, jobs, missing, made)
    for table in study.tables:
        for cell in table.cells:
            if row := cell.measure.reference:
                place, other = (table.title, cell.row, cell.column), results[table.title, row, cell.column]
                missing = results[place].missing or (other.missing and f'{row}: {other.missing}')
                results[place] = results[place]._replace(reference=other.runs, missing=missing)
    return results


def _read(folder: Path, job: plan.Job) -> tuple[dict[int, Run], list[dict[str, Any]]]:
    """The runs of a job by seed, and their provenance; both empty until the job is finished. UserError: a file of a
    finished run is missing or damaged."""
    summary = outputs.finished(folder, job.rounds)
    if summary is None:
        return {}, []
    members = {run.seed: run for run in map(runs.read, runs.trials(folder))}
    if lacking := sorted({*job.seeds} - members.keys()):
        raise UserError(f'{folder} has no run of seed {lacking[0]}; restore it, or delete the folder to run again')
    return members, _made(folder, summary)


def _made(folder: Path, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    made = read_provenance(folder) or [{'commit': 'unknown', 'machine': 'unknown'}]
    return [{**entry, 'device': summary.get('device', 'unknown device')} for entry in made]


def describe(made: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Commits and hardware of runs, from their provenance."""
    return {
        'commits': ', '.join(dict.fromkeys(entry['commit'] for entry in made)),
        'hardware': ', '.join(dict.fromkeys(f'{entry["device"]}, {entry["machine"]}' for entry in made)),
    }


def budget(study: Study, root: Path) -> list[dict[str, Any]]:
    """What the finished runs of a study took, by hardware and commits: rows with BUDGET_KEYS, None: not recorded."""
    seconds: dict[tuple[str, str], tuple[list, list]] = {}  # of rounds, a value a run, and of processors
    for job in plan.jobs(study):
        folder = root / plan.RUNS / job.name
        if summary := outputs.finished(folder, job.rounds):
            made = _made(folder, summary)
            described = describe(made)
            place = described['hardware'], described['commits']
            rounds, processors = seconds.setdefault(place, ([], []))
            rounds.append(summary.get('wall_seconds'))
            processors += [entry.get('processor_seconds') for entry in made]
    return [
        dict(zip(BUDGET_KEYS, (*place, len(rounds), _hours(rounds), _hours(processors)), strict=True))
        for place, (rounds, processors) in seconds.items()
    ]


def _hours(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return round(sum(known) / 3600, 1) if len(known) == len(seconds) else None


def values(result: CellResult, measure: Measure) -> dict[int, float]:
    """Seed -> value, for the seeds that have one."""
    seeds = sorted(result.runs.keys() & result.reference.keys() if measure.reference else result.runs)
    second: Mapping[int, Any] = dict.fromkeys(seeds, measure.target)
    if measure.reference:
        second = result.reference
    elif measure.kind == 'spread':
        members = [result.runs[seed] for seed in seeds]
        second = dict.fromkeys(seeds, members)
    read = {seed: KINDS[measure.kind].read(result.runs[seed], second[seed]) for seed in seeds}
    return {seed: value for seed, value in read.items() if value is not None}


def read_provenance(folder: Path) -> list[dict[str, Any]]:
    """Commits and machines that contributed to a run: dicts of 'commit' and 'machine', and the 'processor_seconds' of
    its processes there if these are known; [] if not recorded."""
    file = folder / PROVENANCE
    return file_io.parse_json(file_io.read(file), str(file)) if file.exists() else []


def record_provenance(folder: Path, entry: dict[str, str], seconds: float | None = None) -> None:
    """Adds `entry` to those of the run in `folder`, unless present; before its first round, replaces them. With
    `seconds`, a process has ended that took as many of the processor."""
    begun = any((trial / 'metrics.jsonl').exists() for trial in runs.trials(folder))
    entries = read_provenance(folder) if begun else []
    own = next((other for other in entries if entry.items() <= other.items()), None)
    if own is None:
        entries.append(own := dict(entry))
    if seconds is not None:
        own['processor_seconds'] = round(own.get('processor_seconds', 0) + seconds, 1)
    folder.mkdir(parents=True, exist_ok=True)
    file_io.write_json(folder / PROVENANCE, entries)


def this_machine() -> dict[str, str]:
    """Commit and machine, as they stand in a provenance."""
    return {'commit': checkpoint.commit(), 'machine': f'{machine.processor()}, {count(machine.cores(), "core")}'}
