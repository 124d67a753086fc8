"""The outputs of a run as files: finding a finished run, resuming an interrupted one, writing what is reported.

For process 0 alone. `workdir` says which run a folder belongs to, `checkpoint`, `metrics` and `diagnostics` write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, warn
from semisfl_jax.training import checkpoint, metrics, tensorboard, totals, workdir
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.diagnostics import files
from semisfl_jax.training.events import Diagnosed, Event, Listener, RoundDone, Snapshot
from semisfl_jax.training.experiment import Experiment


class Home(NamedTuple):
    """A trial and its folder: that of the run, or with several seeds a subfolder of it."""

    experiment: Experiment
    folder: Path

    @property
    def identity(self) -> checkpoint.Identity:
        """The identity stored in its checkpoints."""
        return experiment_lib.identity(self.experiment.config, self.experiment.partition)

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / 'checkpoints'

    @property
    def lines(self) -> Path:
        """Its metrics.jsonl."""
        return self.folder / 'metrics.jsonl'


class Outputs(NamedTuple):
    """What is open while a trial runs."""

    home: Home
    events: tensorboard.Events  # of TensorBoard
    manager: checkpoint.CheckpointManager


def finished(folder: Path, config: ConfigDict) -> dict[str, Any] | None:
    """The content of summary.json if the run is done, else None. Also checks that `folder` is usable.

    A run whose summary was modified does not count as done: it resumes from its last checkpoint and rewrites it.

    Args:
      folder: of the run.
      config: resolved.

    Raises:
      UserError: the folder is not usable, or the run or one of its trials has more rounds than are asked for.
    """
    workdir.check(folder, config)
    summary, _ = workdir.summary_of(folder, config)
    if summary is None or summary['rounds'] < config.rounds:
        return None
    _check_not_beyond(folder, summary['rounds'], config.rounds)
    trials = [
        (home, *workdir.summary_of(home, trial))
        for home, trial in zip(workdir.of_trials(folder, config), config_lib.trials(config), strict=True)
    ]
    if any(fault for *_, fault in trials):
        return None
    if config.data.partition_file:
        partition = data.load_partition(config.data.partition_file)
        for home, *_ in trials:
            workdir.check_partition(home, partition)
    for home, written, _ in trials:
        if written:
            _check_not_beyond(home, written['rounds'], config.rounds)  # it went on alone
            _compare_lines(home, written['rounds'], written['metrics_sha256'])
    if config.diagnostics_every:
        _compare_diagnostics([home for home, *_ in trials], config)
    return summary


def _check_not_beyond(folder: Path, completed: int, rounds: int) -> None:
    if completed > rounds:
        raise UserError(
            f'{folder} has already completed round {completed}, beyond config.rounds={rounds}; '
            f'use config.rounds={completed} or more, or another --workdir'
        )


def _compare_diagnostics(homes: Sequence[Path], config: ConfigDict) -> None:
    """Warns if a finished run is asked for diagnostics that it did not write."""
    for home in homes:
        if missing := files.missing(home, config.rounds, config.diagnostics_every):
            warn(
                f'{home} is finished without diagnostics of round {missing[0]}'
                + (f' and {len(missing) - 1} more' if missing[1:] else '')
                + f', for which config.diagnostics_every={config.diagnostics_every} asks; nothing is written: they are '
                'made while a run trains, so train it anew in another --workdir'
            )


def _compare_lines(folder: Path, rounds: int, checksum: str) -> None:
    """Warns if metrics.jsonl differs from what the run wrote up to round `rounds`."""
    try:
        fault = metrics.fault(folder / 'metrics.jsonl', rounds, checksum)
    except UserError as error:
        fault = str(error)
    if fault:
        warn(f'{fault}; checkpoints, later lines and summary.json do not depend on it, plots and comparisons do')


def restore(homes: Sequence[Home], rounds: int, template: Any) -> checkpoint.Restored | None:
    """The last checkpoints of the trials, for a run of `rounds` rounds in total; None if there are none.

    Args:
      homes: [R].
      rounds: of the whole run.
      template: the state of one trial, see `checkpoint.restore_all`.

    Raises:
      UserError: the checkpoints, of any trial, are beyond `rounds` or unusable, or metrics.jsonl or summary.json does
        not go with them.
    """
    # The last of each trial, as one may have gone on alone: what is newer than the round that all share is cut back.
    last = [(checkpoint.rounds_saved(home.checkpoints) or [0])[-1] for home in homes]
    saved = max(last)
    _check_not_beyond(homes[last.index(saved)].folder, saved, rounds)
    restored = checkpoint.restore_all([home.checkpoints for home in homes], template, [home.identity for home in homes])
    # If some trials have a checkpoint and others none, the run was killed at its first save, after the lines of
    # these rounds had been written for all. Anything else is not such a run, and must not be overwritten.
    completed = restored.round if restored else saved
    for home in homes:
        if not completed and os.path.lexists(home.folder / workdir.SUMMARY):
            raise UserError(
                f'{home.folder} holds a {workdir.SUMMARY} but no checkpoint to resume from; restore its checkpoints, '
                'or choose another --workdir'
            )
        metrics.check_rounds(home.lines, completed)
    if restored:
        for home, notes in zip(homes, restored.notes, strict=True):
            _compare_lines(home.folder, restored.round, notes['metrics_sha256'])
    return restored


def contents(homes: Sequence[Home]) -> list[tuple[list[int], bool]]:
    """What is there of each trial: the rounds of its checkpoints, and whether it has a summary."""
    return [
        (checkpoint.rounds_saved(home.checkpoints), os.path.lexists(home.folder / workdir.SUMMARY)) for home in homes
    ]


@contextmanager
def writer(
    homes: Sequence[Home], folder: Path, config: ConfigDict, completed: int, seen: list[tuple[list[int], bool]]
) -> Iterator[Listener]:
    """Opens all outputs of a run, and truncates what an interrupted run wrote after round `completed`.

    Args:
      homes: [R].
      folder: of the run.
      config: resolved.
      completed: rounds completed.
      seen: `contents`, as they were when the run was restored.

    Returns:
      A listener that writes metrics, TensorBoard events, diagnostics and checkpoints as they are reported.

    Raises:
      UserError: the folder is not writable, or another process is running in it, or has been since it was restored;
        also from the listener.
    """
    max_to_keep = config.checkpoints_kept
    with ExitStack() as stack:
        if config.seeds:
            stack.enter_context(workdir.hold(folder, config, None))
            # Trials are saved one after another, and all must share one complete round.
            max_to_keep = max(max_to_keep, 2)
        for experiment, trial_folder in homes:
            stack.enter_context(workdir.hold(trial_folder, experiment.config, experiment.partition))
        if contents(homes) != seen:
            raise UserError(f'another process has since continued the run in {folder}; run the same command again')
        for experiment, trial_folder in homes:
            workdir.set_aside_summary(trial_folder, experiment.config)
        if config.seeds:
            workdir.set_aside_summary(folder, config)
        outputs = []
        for home in homes:
            metrics.cut_back(home.lines, completed)
            checkpoint.cut_back(home.checkpoints, completed)
            files.cut_back(home.folder, completed)
            manager = stack.enter_context(closing(checkpoint.open_manager(home.checkpoints, max_to_keep)))
            events = stack.enter_context(closing(tensorboard.Events(home.folder / 'tensorboard', completed + 1)))
            outputs.append(Outputs(home, events, manager))
        yield partial(_write, outputs)


def _write(outputs: Sequence[Outputs], event: Event) -> None:
    """Writes what an event reports about each trial."""
    match event:
        case RoundDone(records):
            for out, record in zip(outputs, records, strict=True):
                metrics.append(out.home.lines, record)
                tensorboard.log_events(out.events, record)
        case Diagnosed(completed, arrays):
            for out, named_arrays in zip(outputs, arrays, strict=True):
                files.save(out.home.folder, completed, named_arrays)
        case Snapshot(completed, states, controllers, accounts):
            for out, state, controller, account in zip(outputs, states, controllers, accounts, strict=True):
                tree = {'algorithm': state, 'frequency': controller}
                checkpoint.save(out.manager, completed, tree, out.home.identity, totals.to_json(account))


def write_summaries(
    homes: Sequence[Home], folder: Path, summaries: Sequence[dict[str, Any]], summary: dict[str, Any]
) -> None:
    """Writes summary.json of every trial and, with several seeds, then that of the run."""
    for home, content in zip(homes, summaries, strict=True):
        file_io.write_json(home.folder / workdir.SUMMARY, content)
    if summary is not summaries[0]:
        file_io.write_json(folder / workdir.SUMMARY, summary)
