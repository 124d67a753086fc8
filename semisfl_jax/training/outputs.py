"""The folder of a run: which run it is of, resuming from it, and writing there what the run reports.

For process 0 alone. With several seeds, each trial has a subfolder. `checkpoint`, `metrics` and `diagnostics` have the
formats of the files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import filelock
from ml_collections import ConfigDict
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from semisfl_jax import config as config_lib
from semisfl_jax import data, tasks
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import checkpoint, diagnostics, metrics
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.events import Diagnosed, Event, Listener, RoundDone, Snapshot
from semisfl_jax.training.experiment import Experiment

SUMMARY = 'summary.json'
_LOOK = 1  # second for which a folder is tried: another process may hold its lock just to see whether it can
_BUSY = 'another process is running in {}; wait for it, or stop it first'


def trial_folders(folder: Path, config: ConfigDict) -> list[Path]:
    """The folder of every trial: `folder` itself, or with several seeds its subfolders seed_N."""
    return [folder / f'seed_{seed}' for seed in config.seeds] or [folder]


def check_folder(folder: Path, config: ConfigDict) -> None:
    """Makes sure, without writing, that a run of `config` (resolved) may write to `folder` or create it.

    Raises:
      UserError: it is not writable, or holds something else.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise UserError(f'the workdir {folder} cannot be created: {existing} is not a folder; choose another --workdir')
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f'no permission to write to {existing}; choose another --workdir')
    file = folder / 'config.json'
    if not os.path.lexists(file):
        if foreign := [name for name in ('metrics.jsonl', 'checkpoints') if (folder / name).exists()]:
            raise UserError(f'{folder} holds {foreign[0]} but no config.json; choose another --workdir')
        return
    try:
        content = file_io.read_object(file)
    except UserError as error:
        raise UserError(f'{error}; restore it from a copy, or choose another --workdir') from error
    if differing := config_lib.differences(config, content):
        differing_keys = '; '.join(differing[:6])
        raise UserError(f'{folder} belongs to a different configuration ({differing_keys}); choose another --workdir')


def check_partition(folder: Path, partition: data.Partition) -> None:
    """Makes sure that a split is the one that the run in `folder` started with.

    Raises:
      UserError: it is not, or the file is damaged.
    """
    file, advice = folder / 'partition.npz', 'delete it, and the run writes it again'
    if file.exists() and data.load_partition(file, advice=advice).content_hash != partition.content_hash:
        raise UserError(f'the data or their split differ from those of {file}; choose another --workdir')


def busy(folder: Path) -> bool:
    """Whether another process runs in `folder`."""
    if not (folder / '.lock').exists():
        return False
    try:
        with filelock.FileLock(folder / '.lock', timeout=_LOOK):
            return False
    except filelock.Timeout:
        return True


@contextmanager
def lock_folder(folder: Path, config: ConfigDict, partition: data.Partition | None) -> Iterator[None]:
    """Creates `folder`, locks out other processes for the duration of the block, and writes config.json and
    partition.npz. `partition` is None for the folder of several trials, each of which has its own.

    Raises:
      UserError: the folder is not writable, or another process is running in it.
    """
    with ExitStack() as stack:
        with file_io.writing('--workdir'):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(filelock.FileLock(folder / '.lock', timeout=_LOOK))
            except filelock.Timeout as error:
                raise UserError(_BUSY.format(folder)) from error
            check_folder(folder, config)  # again: another process may have been here since
            file_io.write_json(folder / 'config.json', config.to_dict())
            if partition and not (folder / 'partition.npz').exists():
                data.save(partition, folder / 'partition.npz', '--workdir')
        yield


def finished(folder: Path, rounds: int) -> dict[str, Any] | None:
    """The intact summary.json of a run with at least `rounds` rounds; else None."""
    try:
        summary = file_io.read_object(folder / SUMMARY)
    except UserError:
        return None
    return summary if file_io.is_sealed(summary) and summary['rounds'] >= rounds else None


def read_finished(folder: Path, config: ConfigDict) -> dict[str, Any] | None:
    """The content of summary.json if the run of `config` (resolved) is done, else None. Also checks that `folder` is
    usable. A run without an intact summary resumes from its last checkpoint and writes it again.

    Raises:
      UserError: the folder is not usable, another process is training in it, or the run or one of its trials has more
        rounds than are asked for.
    """
    check_folder(folder, config)
    summary = finished(folder, config.rounds)
    if summary is None or summary.get('config_hash') != config_lib.identity_hash(config):
        if busy(folder):
            raise UserError(_BUSY.format(folder))
        return None
    _check_not_beyond(folder, summary['rounds'], config.rounds)
    for home in trial_folders(folder, config):
        _check_not_beyond(home, _last_round(home), config.rounds)  # it went on alone
        if config.data.partition_file:
            check_partition(home, data.load_partition(config.data.partition_file))
    return summary


def _last_round(folder: Path) -> int:
    """The last round of a trial that was saved, 0 for none."""
    return (checkpoint.rounds_saved(folder / 'checkpoints') or [0])[-1]


def _check_not_beyond(folder: Path, completed: int, rounds: int) -> None:
    if completed > rounds:
        raise UserError(
            f'{folder} has already completed round {completed}, beyond config.rounds={rounds}; '
            f'use config.rounds={completed} or more, or another --workdir'
        )


class RunFolder:
    """The folder `path` of a run of R trials that is about to train, and the folder of each trial, `homes` [R]."""

    def __init__(self, path: Path, config: ConfigDict, trials: Sequence[Experiment]):
        self.path, self.homes = path, trial_folders(path, config)
        self._config, self._trials = config, trials
        self._identities = [experiment_lib.identity(trial.config, trial.partition) for trial in trials]
        self._saved = list(map(_last_round, self.homes))

    def restore(self, template: Any) -> checkpoint.Restored | None:
        """The last checkpoints of the trials; None if there are none. `template` as in `checkpoint.restore`.

        Raises:
          UserError: the checkpoints, of any trial, are beyond `config.rounds` or unusable, or metrics.jsonl or
            summary.json does not go with them.
        """
        # The last of each trial, as one may have gone on alone: what is newer than the round that all share is removed.
        last = max(self._saved)
        _check_not_beyond(self.homes[self._saved.index(last)], last, self._config.rounds)
        restored = checkpoint.restore([home / 'checkpoints' for home in self.homes], template, self._identities)
        # If some trials have a checkpoint and others none, the run was killed at its first save, after the lines of
        # these rounds had been written for all. Anything else is not such a run, and must not be overwritten.
        completed = restored.round if restored else last
        for home in self.homes:
            if not completed and os.path.lexists(home / SUMMARY):
                raise UserError(
                    f'{home} holds a {SUMMARY} but no checkpoint to resume from; restore its checkpoints, or choose '
                    'another --workdir'
                )
            metrics.check_rounds(home / 'metrics.jsonl', completed)
        return restored

    @contextmanager
    def writer(self, completed: int) -> Iterator[Listener]:
        """A listener that writes metrics, TensorBoard events, diagnostics and checkpoints as they are reported. What an
        interrupted run wrote after round `completed` is removed first.

        Raises:
          UserError: the folder is not writable, or another process is running in it; also from the listener.
        """
        max_to_keep = self._config.checkpoints_kept
        with ExitStack() as stack:
            if self._config.seeds:
                stack.enter_context(lock_folder(self.path, self._config, None))
                # Trials are saved one after another, and all must share one complete round.
                max_to_keep = max(max_to_keep, 2)
            for home, trial in zip(self.homes, self._trials, strict=True):
                stack.enter_context(lock_folder(home, trial.config, trial.partition))
            if list(map(_last_round, self.homes)) != self._saved:
                raise UserError(f'another process has trained in {self.path} since this one began; start it again')
            outputs = []
            for home, identity in zip(self.homes, self._identities, strict=True):
                metrics.truncate(home / 'metrics.jsonl', completed)
                checkpoint.remove_after(home / 'checkpoints', completed)
                diagnostics.cut_back(home, completed)
                manager = stack.enter_context(closing(checkpoint.open_manager(home / 'checkpoints', max_to_keep)))
                events = stack.enter_context(closing(open_events(home / 'tensorboard', completed + 1)))
                outputs.append(Outputs(home, identity, events, manager))
            yield partial(_write, outputs)

    def write_summaries(self, summaries: Sequence[dict[str, Any]], summary: dict[str, Any]) -> None:
        """Writes summary.json of every trial and, with several seeds, then that of the run."""
        for home, content in zip(self.homes, summaries, strict=True):
            file_io.write_json(home / SUMMARY, content)
        if self._config.seeds:
            file_io.write_json(self.path / SUMMARY, summary)


class Outputs(NamedTuple):
    """What is open while a trial runs."""

    folder: Path
    identity: checkpoint.Identity
    events: EventsWriter  # of TensorBoard
    manager: checkpoint.CheckpointManager


def _write(outputs: Sequence[Outputs], event: Event) -> None:
    """Writes what an event reports about each trial."""
    match event:
        case RoundDone(records):
            for out, record in zip(outputs, records, strict=True):
                metrics.append(out.folder / 'metrics.jsonl', record)
                log_events(out.events, record)
        case Diagnosed(completed, arrays):
            for out, named_arrays in zip(outputs, arrays, strict=True):
                diagnostics.save(out.folder, completed, named_arrays)
        case Snapshot(completed, states, controllers, totals):
            for out, state, controller, of_trial in zip(outputs, states, controllers, totals, strict=True):
                tree, notes = {'algorithm': state, 'frequency': controller}, metrics.totals_to_json(of_trial)
                checkpoint.save(out.manager, completed, tree, out.identity, notes)


def open_events(folder: Path, first_round: int) -> EventsWriter:
    """Opens a new file of TensorBoard events, which hides what other files of the folder have from `first_round` on.

    The process writes it itself. tensorboardX's SummaryWriter leaves that to a thread, which a full disk ends: the run
    would wait forever once that thread's queue is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    events, start = EventsWriter(str(folder / 'events')), SessionLog(status=SessionLog.START)
    events.write_event(TensorBoardEvent(wall_time=time.time(), step=first_round, session_log=start))
    return events


def log_events(events: EventsWriter, record: dict[str, Any]) -> None:
    """Logs one line of metrics.jsonl as scalars, grouped under FAKE for synthetic images, scores under VALIDATION
    if they are of validation images."""
    group, scalars = 'FAKE/' if record.get('fake') else '', Summary()
    for key, value in record.items():
        if key not in ('round', 'fake', 'validation') and value is not None:
            part = 'VALIDATION/' if record.get('validation') and tasks.split_key(key) else ''
            scalars.value.add(tag=group + part + key, simple_value=value)
    events.write_event(TensorBoardEvent(wall_time=time.time(), step=record['round'], summary=scalars))
    events.flush()
