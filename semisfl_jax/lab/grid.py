"""Runs a grid by command: each cell is a process of its own, as it is alone, and a table at the end compares them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import semisfl_jax as sfl
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import Diverged, UserError, count, warn
from semisfl_jax.base.keys import as_word
from semisfl_jax.lab import compare
from semisfl_jax.lab.launcher import Launcher
from semisfl_jax.lab.studies.engine import LOGS, Session, Work
from semisfl_jax.lab.studies.plan import CellJob, Failed, Task


def run(
    cells: Sequence[sfl.grid.Cell],
    name: str,
    words: Sequence[str],
    root: str,
    show: Callable[[str], None],
    launcher: Launcher | None = None,
    program: Path | None = None,
) -> None:
    """Executes the cells that are missing, and shows a table of all.

    Args:
      cells: the cells.
      name: of their configuration; their folders are NAME-HASH.
      words: of the command that all share.
      root: folder of their folders; '': runs.
      show: takes a line on what is going on.
      launcher: starts the jobs that execute them; None: this process does.
      program: as in `engine.run`.

    Raises:
      UserError: the folder is not usable, or some cells have failed.
      Stopped: it was asked to stop.
    """
    home, faults = file_io.expand_home(root or 'runs', 'the workdir'), dict[str, Failed]()
    by_name = {sfl.run_name(cell.config, name): cell for cell in cells}
    jobs = [CellJob(each, _words(words, cell), cell.config.rounds) for each, cell in by_name.items()]

    def summary(job: CellJob, rounds: int) -> dict[str, Any] | None:
        return sfl.runs.finished(home / job.name, rounds)

    def missing() -> list[CellJob]:
        return [job for job in jobs if job.name not in faults and not summary(job, job.rounds)]

    def result(job: CellJob) -> str:
        return str(sfl.Result(summary(job, job.rounds) or {})).partition('\n')[0]

    def record(job: CellJob, failed: Failed | None) -> str:
        if failed:
            faults[job.name] = failed
        return f'failed: {failed.line}' if failed else result(job)

    def tasks() -> list[Task]:
        return [
            Task(job, by_name[job.name].title, partial(record, job), result=partial(result, job)) for job in missing()
        ]

    def table() -> str:
        rows = {
            by_name[job.name].title: {run.seed: run for run in sfl.runs.read_finished([home / job.name])}
            for job in jobs
            if summary(job, job.rounds)
        }
        return str(compare.side_by_side([run for row in rows.values() for run in row.values()], known=rows))

    def fault() -> str:
        if not faults:
            return ''
        titles = '; '.join(by_name[name].title for name in faults)
        first = next(iter(faults.values())).line
        return f'{len(faults)} of {count(len(jobs), "cell")} failed: {titles}; the first with: {first}'

    sfl.runs.check_name(home)
    begun = [job for job in jobs if summary(job, 0)]
    for job in begun:
        if (done := (summary(job, 0) or {})['rounds']) > job.rounds:
            more = f'{home / job.name} has already completed round {done}, beyond config.rounds={job.rounds}'
            raise UserError(f'{more}; use config.rounds={done} or more, or another --workdir')
    sfl.runs.check_inputs([home / job.name for job in begun])
    with file_io.writing('--workdir'):
        (home / LOGS).mkdir(parents=True, exist_ok=True)
    for line in dict.fromkeys(line for cell in cells for line in cell.told):
        warn(line)
    left = len(missing())
    head = [
        f'{count(len(jobs), "cell")} of {" x ".join(cells[0].values) or "seeds"}, {len(jobs) - left} done, in {home}'
    ]
    work = Work(head, lambda: len(missing()), tasks, table, fault)
    try:
        Session(home, home / LOGS, show, program, reports=False).run(work, launcher)
    finally:
        if len(missing()) + len(faults) < len(jobs):
            show(f'\n{table()}\n')
    if text := fault():
        only_diverged = {failed.status for failed in faults.values()} == {Diverged.status}
        raise (Diverged if only_diverged else UserError)(f'{text}; the same command tries again')


def _words(words: Sequence[str], cell: sfl.grid.Cell) -> list[str]:
    """Returns the words of the command that trains a cell alone."""
    seeds = {'seeds': cell.config.seeds} if cell.config.seeds else {'seed': cell.config.seed}
    return [*words, *(f'--config.{key}={as_word(value)}' for key, value in (cell.values | seeds).items())]
