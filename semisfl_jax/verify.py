"""Says whether the folder of a run is whole.

    semisfl verify RUN [RUN ...] [--rerun=K] [--import=FILE.py]

For each thing that is checked, a line says that it is whole, or what is wrong: config.json, summary.json and the lines
of metrics.jsonl, which must fit each other; partition.npz; every checkpoint and all diagnostics, which are read. Of a
run of several seeds, those of each. This needs no data. With --rerun=K, the first K rounds are trained again here, and
their numbers, all but the times, compared with those in metrics.jsonl. The folder is not modified.

Exit status: 0 if all is whole and equal, 2 if not. If a method, model or data set is yours, --import runs the file that
registers it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import data, runs
from semisfl_jax.base.errors import UserError, count
from semisfl_jax.config import command_line
from semisfl_jax.config.resolve import count_devices
from semisfl_jax.training import checkpoint, checks, diagnostics, events, experiment, load, loop, metrics, outputs
from semisfl_jax.training.callbacks import BEST


def find(folder: Path, rerun: int = 0) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the checks of the folder of a run: a name, and a function that raises UserError.

    Args:
      folder: folder of the run.
      rerun: number of first rounds to train again, 0 for none.

    Raises:
      UserError: the folder holds no run, or one that cannot be repeated here.
    """
    load.config(folder)
    homes = runs.trials(folder)
    if rerun:
        again = load.checked_config(folder, {'rounds': rerun, 'diagnostics_every': 0})
        count_devices(again)  # divides a CPU, before JAX is used
    if homes != [folder]:
        yield f'seeds of {folder}', partial(_seeds, folder)
    for home in homes:
        yield f'results in {home}', partial(_results, home)
        yield f'{home}/partition.npz', partial(_identity, home)
        for name in ('checkpoints', BEST):
            for number in checkpoint.rounds_saved(home / name):
                yield f'{home}/{name}/{number}', partial(_checkpoint, home, name, number)
        for number in diagnostics.rounds_written(home):
            yield f'{home}/diagnostics of round {number}', partial(diagnostics.load, home, number)
    if rerun:
        yield f'rounds 1 to {rerun} of {folder}, trained again', partial(_rerun, again, homes)


def _seeds(folder: Path) -> None:
    """Checks the summary of a run of several seeds, and that none of its seeds is gone."""
    runs.read_ends(folder)
    if gone := runs.lacking(folder):
        raise UserError(f'{", ".join(gone)} is gone; restore it from a copy')


def _results(home: Path) -> None:
    """Checks the files of a trial against each other, and that its last checkpoint is there."""
    rounds = len(runs.read_run(home).curve('round'))
    if outputs.last_round(home) < rounds:
        raise UserError(f'the checkpoint of round {rounds}, the last one, is gone; restore it from a copy')


def _identity(home: Path) -> checkpoint.Identity:
    """Reads the split of a trial, and returns its identity."""
    split = data.load_partition(home / 'partition.npz', advice='restore it from a copy')
    return experiment.identity(load.config(home), split)


def _checkpoint(home: Path, name: str, number: int) -> None:
    """Checks one checkpoint of a trial, in its folder `name`."""
    if fault := checkpoint.check(home / name, number, _identity(home)):
        raise UserError(f'{fault}; restore it from a copy')


def _rerun(config: ConfigDict, homes: Sequence[Path]) -> None:
    """Trains the first rounds again, and compares their numbers with those written."""
    written = [metrics.check_rounds(home / 'metrics.jsonl', config.rounds) for home in homes]
    done: events.Lines = {}
    loop.train_resolved(config, None, [lambda event: done.update(getattr(event, 'lines', {}))])
    for home, before, after in zip(homes, written, done.values(), strict=True):
        for old, now in zip(before, after, strict=True):
            for key in sorted(old.keys() & now.keys() - {*checks.TIMES}):  # the last round is always evaluated
                if old[key] != now[key]:
                    raise UserError(f'in round {now["round"]} of {home}, {key} was {old[key]} and is {now[key]} here')


def run(folders: list[Path], rerun: int = 0) -> None:
    """Checks runs, and prints a line for each thing that is checked.

    Args:
      folders: folders of runs.
      rerun: number of first rounds to train again.

    Raises:
      UserError: something is not as the run wrote it.
    """
    if rerun < 0:
        raise UserError(f'--rerun={rerun}: must be a number of rounds, 0 or more')
    faults = 0
    for name, check in (check for folder in folders for check in find(folder, rerun)):
        try:
            check()
            print(f'whole  {name}', flush=True)
        except UserError as error:
            faults += 1
            print(f'FAULT  {name}: {error}', flush=True)
    if faults:
        raise UserError(f'{count(faults, "fault")}, named above')


if __name__ == '__main__':
    sys.exit(command_line.run_tool('verify', sys.modules[__name__], sys.argv))
