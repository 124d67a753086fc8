"""The table of a plan's finished runs: what each cell of a study has, and the machines and commits behind it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import semisfl_jax as sfl
from semisfl_jax.base import file_io, machine
from semisfl_jax.base.errors import UserError, count
from semisfl_jax.lab.studies import measures
from semisfl_jax.lab.studies import plan as plans
from semisfl_jax.lab.studies.measures import CellKey, CellResult, Runs
from semisfl_jax.lab.studies.plan import Job, Plan
from semisfl_jax.lab.studies.spec import Cell
from semisfl_jax.runs import Run

PROVENANCE = 'provenance.json'  # in the folder of a run
BUDGET_KEYS = ('hardware', 'commits', 'runs', 'hours_of_rounds', 'processor_hours')  # of budget.csv
NOT_RUN, DAMAGED = 'not run yet', 'damaged: '


class JobResult(NamedTuple):
    """What a job has left."""

    runs: Runs  # {} unless it is finished
    missing: str  # why it has no runs, '' if it has
    provenance: Sequence[Mapping[str, Any]] = ()  # commits and machines
    seconds: float | None = None  # of its rounds


def read_jobs(
    plan: Plan, root: Path, faults: Mapping[str, str], before: Mapping[str, JobResult] = MappingProxyType({})
) -> dict[str, JobResult]:
    """Reads the finished jobs of a plan.

    Args:
      plan: the plan.
      root: folder of studies.
      faults: errors of failed jobs, by name.
      before: results by name that were read before; finished ones are not read again.

    Returns:
      The results by name.
    """
    unread = [job for job in plan.jobs if job.name not in before or not before[job.name].runs]
    read = {job.name: _read(root / plans.RUNS / job.name, job, faults.get(job.name, '')) for job in unread}
    return {job.name: read.get(job.name) or before[job.name] for job in plan.jobs}


def _read(folder: Path, job: Job, fault: str) -> JobResult:
    """Reads a job; one whose files are damaged has no runs."""
    summary = sfl.runs.finished(folder, job.rounds)
    if summary is None:
        return JobResult({}, f'failed: {fault}' if fault else NOT_RUN)
    try:
        runs = {run.seed: run for run in map(sfl.runs.read_run, sfl.runs.trials(folder))}
        if lacking := sorted({*job.seeds} - runs.keys()):
            again = 'restore it, or delete the folder to run again'
            raise UserError(f'{folder} has no run of seed {lacking[0]}; {again}')
        entries = read_provenance(folder) or [{'commit': 'unknown', 'machine': 'unknown'}]
    except UserError as error:
        return JobResult({}, f'{DAMAGED}{error}')
    device = summary.get('device', 'unknown device')
    return JobResult(runs, '', [{**entry, 'device': device} for entry in entries], summary.get('wall_seconds'))


def fill(plan: Plan, jobs: Mapping[str, JobResult]) -> dict[CellKey, CellResult]:
    """Fills the cells of a study with the results of its jobs, by name."""
    of_cells = list(zip(plan.cells, plan.definition.cells(), strict=True))
    gathered = {key: _gather(cell, plan.cells[key], jobs) for key, cell in of_cells}
    cells = {}
    for (title, row, column), cell in of_cells:
        runs, missing, provenance = gathered[title, row, column]
        reference: Runs = {}
        if other := cell.measure.reference:
            reference, lacking, _ = gathered[title, other, column]
            missing = missing or (lacking and f'{other}: {lacking}')
        numbers = measures.values(cell.measure, runs, reference)
        cells[title, row, column] = CellResult(runs, numbers, missing, provenance)
    return cells


def _gather(
    cell: Cell, cell_jobs: Sequence[Job], jobs: Mapping[str, JobResult]
) -> tuple[Runs, str, list[Mapping[str, Any]]]:
    """Returns the runs of a cell by seed, why some are missing, and their provenance."""
    results, runs, provenance = [jobs[job.name] for job in cell_jobs], dict[int, Run](), []
    for result in results:
        runs |= result.runs
        provenance += [entry for entry in result.provenance if entry not in provenance]
    reasons = {plans.without_folders(result.missing) for result in results if result.missing}
    missing = '; '.join(sorted(reasons - {NOT_RUN}) or reasons)
    if cell.measure.trivial:
        runs = {seed: run.trivial(cell.measure.trivial) for seed, run in runs.items()}
    if changed := sfl.runs.changed([*runs.values()]):
        return {}, f'its seeds began with different contents of {" and ".join(changed)}', provenance
    return runs, missing, provenance


def describe(provenance: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Describes commits and hardware of runs."""
    return {
        'commits': ', '.join(dict.fromkeys(entry['commit'] for entry in provenance)),
        'hardware': ', '.join(dict.fromkeys(f'{entry["device"]}, {entry["machine"]}' for entry in provenance)),
    }


def budget(jobs: Mapping[str, JobResult]) -> list[dict[str, Any]]:
    """Sums what finished jobs took, by hardware and commits: rows with BUDGET_KEYS, None: not recorded."""
    groups: dict[tuple[str, str], list[JobResult]] = {}
    for job in jobs.values():
        if job.runs:
            described = describe(job.provenance)
            groups.setdefault((described['hardware'], described['commits']), []).append(job)
    rows = []
    for place, group in groups.items():
        processor = [entry.get('processor_seconds') for job in group for entry in job.provenance]
        spent = hours([job.seconds for job in group]), hours(processor)
        rows.append(dict(zip(BUDGET_KEYS, (*place, len(group), *spent), strict=True)))
    return rows


def hours(seconds: Sequence[float | None]) -> float | None:
    """Sums seconds to hours; None if one is not known."""
    return None if None in seconds else round(sum(filter(None, seconds)) / 3600, 1)


def read_provenance(folder: Path) -> list[dict[str, Any]]:
    """Reads the commits and machines that contributed to a run.

    Returns:
      Objects of 'commit' and 'machine', and the 'processor_seconds' of its processes there if these are known; [] if
      nothing was recorded.

    Raises:
      UserError: the file was modified.
    """
    file = folder / PROVENANCE
    entries = file_io.parse_json(file_io.read(file), str(file)) if file.exists() else []
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise UserError(f'{file} was modified after a study wrote it; delete it: its commit is then unknown')
    return entries


def _is_entry(entry: Any) -> bool:
    match entry:
        case {'commit': str(), 'machine': str(), **others}:
            return type(others.get('processor_seconds', 0)) in (int, float)
    return False


def record_provenance(folder: Path, entry: Mapping[str, str], seconds: float | None = None) -> None:
    """Adds an entry to the provenance of a run, unless it is there; before its first round, replaces all.

    Args:
      folder: folder of the run.
      entry: commit and machine.
      seconds: what a process took that has ended, of the processor.
    """
    begun = any((trial / 'metrics.jsonl').exists() for trial in sfl.runs.trials(folder))
    entries = read_provenance(folder) if begun else []
    present = next((other for other in entries if entry.items() <= other.items()), None)
    if present is None:
        entries.append(present := dict(entry))
    if seconds is not None:
        present['processor_seconds'] = round(present.get('processor_seconds', 0) + seconds, 1)
    folder.mkdir(parents=True, exist_ok=True)
    file_io.write_json(folder / PROVENANCE, entries)


def this_machine() -> dict[str, str]:
    """Returns commit and machine, as they stand in a provenance."""
    return {'commit': sfl.commit(), 'machine': f'{machine.processor()}, {count(machine.cores(), "core")}'}
