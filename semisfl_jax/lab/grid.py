"""Runs a grid by command: cells that are one program are a process. A table at the end has all of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import semisfl_jax as sfl
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import STOPPED, Diverged, UserError, count, warn
from semisfl_jax.base.keys import as_word
from semisfl_jax.lab.launcher import Launcher
from semisfl_jax.lab.studies.engine import LOGS, Jobs, Session, Work
from semisfl_jax.lab.studies.plan import CellJob


def run(
    cells: Sequence[sfl.grid.Cell],
    name: str,
    words: Sequence[str],
    root: str = '',
    program: Path | None = None,
    show: Callable[[str], None] = lambda line: None,
    launcher: Launcher | None = None,
    share: int = 1,
) -> None:
    """Executes the cells that are missing, and shows a table of all.

    Args:
      cells: the cells.
      name: of their configuration; their folders are NAME-HASH.
      words: of a command, which all share.
      root: folder of their folders; '': runs.
      program: as in `engine.run`.
      show: likewise.
      launcher: likewise.
      share: likewise.

    Raises:
      UserError: the folder is not usable, or some cells have failed.
      Stopped: it was asked to stop.
    """
    home = file_io.expand_home(root or 'runs', 'the workdir')
    sfl.runs.check_name(home)
    made = {sfl.run_name(cell.config, name): cell for cell in cells}
    named = [
        CellJob(each, cell.title, _words(words, cell), cell.config.rounds, sfl.grid.program(cell.config))
        for each, cell in made.items()
    ]
    jobs = Jobs(named, home, {})
    due = {job.name for job in jobs.missing()}
    sfl.runs.check_inputs([home / each for each in made if each not in due])
    with file_io.writing('--workdir'):
        (home / LOGS).mkdir(parents=True, exist_ok=True)
    for line in dict.fromkeys(line for cell in cells for line in cell.told):
        warn(line)
    keys = ' x '.join(cells[0].values) or 'seeds'
    head = f'grid of {keys} in {home}: {count(len(made), "cell")}, {len(made) - len(due)} done'
    try:
        Session(home, home / LOGS, show, program, reports=False, share=share).run(
            Work([head], jobs.left, jobs.tasks, str, str), launcher
        )
    finally:
        done = made.keys() - jobs.faults.keys() - {job.name for job in jobs.missing()}
        results = {made[each].key: sfl.Result(sfl.runs.finished(home / each, 0) or {}) for each in done}
        failed = {made[each].key: UserError(line) for each, line in jobs.faults.items()}
        show(f'\n{sfl.grid.Results(cells, results, failed)}\n')
    if jobs.faults:
        titles = '; '.join(made[each].title for each in jobs.faults)
        kind = Diverged if all(STOPPED in line for line in jobs.faults.values()) else UserError
        raise kind(f'{len(failed)} of {count(len(made), "cell")} failed: {titles}; the same command tries again')


def _words(words: Sequence[str], cell: sfl.grid.Cell) -> list[str]:
    """Returns the words of the command that trains a cell alone."""
    changes = {**cell.values, **({'seeds': cell.config.seeds} if cell.config.seeds else {'seed': cell.config.seed})}
    return [*words, *(f'--config.{key}={as_word(value)}' for key, value in changes.items())]
