"""The folder of a run: which run it belongs to, resuming from it, and writing there what the run reports.

For process 0 alone. With several seeds, each trial has a subfolder. `checkpoint`, `metrics` and `diagnostics` define
the formats of the files.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from semisfl_jax import config as config_lib
from semisfl_jax import data, tasks
from semisfl_jax.base import file_io, machine
from semisfl_jax.base.errors import UserError, count, warn
from semisfl_jax.data import arrays as arrays_lib
from semisfl_jax.training import checkpoint, checks, diagnostics, metrics
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.events import Diagnosed, Event, Listener, RoundDone, Snapshot
from semisfl_jax.training.experiment import Experiment

SUMMARY, BEGAN = 'summary.json', 'began.json'


def trial_folders(folder: Path, config: ConfigDict) -> list[Path]:
    """Lists the folders of all trials: `folder` itself, or with several seeds its subfolders seed_N."""
    return [folder / f'seed_{seed}' for seed in config.seeds] or [folder]


def check_writable(folder: Path) -> None:
    """Raises UserError if a run can neither write to `folder` nor create it; writes nothing."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise UserError(f'the workdir {folder} cannot be created: {existing} is not a folder; choose another --workdir')
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f'no permission to write to {existing}; choose another --workdir')


def check_folder(folder: Path, config: ConfigDict) -> None:
    """Raises UserError if `folder` holds something else than a run of `config` (resolved)."""
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
        if f'data.name: {arrays_lib.NAME} -> {config.data.name}' in differing:
            raise UserError(f'the data of {folder} were {arrays_lib.IN_NO_FILE}; or choose another --workdir')
        differing_keys = '; '.join(differing[:6])
        raise UserError(f'{folder} belongs to a different configuration ({differing_keys}); choose another --workdir')


def check_partition(folder: Path, partition: data.Partition) -> None:
    """Checks that a split is the one that the run in `folder` started with.

    Raises:
      UserError: the split differs, or the file is damaged.
    """
    file, advice = folder / 'partition.npz', 'delete it, and the run writes it again'
    if file.exists() and data.load_partition(file, advice=advice).content_hash != partition.content_hash:
        raise UserError(f'the data or their split differ from those of {file}; choose another --workdir')


def read_began(folder: Path) -> dict[str, Any]:
    """Reads what a trial began with, from its began.json.

    Raises:
      UserError: there is none, or it was modified.
    """
    content = file_io.read_object(folder / BEGAN)
    if not file_io.is_sealed(content):
        raise UserError(f'{folder / BEGAN} was modified after the run wrote it; restore it from a copy')
    return content


def check_inputs(
    homes: Sequence[Path], config: ConfigDict, checksum_of: Callable[[FrozenConfigDict], str] = data.checksum_of
) -> None:
    """Checks that the inputs that `config` names, and JAX's settings, are those that the trials began with.

    A warning lists inputs that are gone: a run that has begun needs them no more.

    Args:
      homes: [R], folders of the trials.
      config: configuration, resolved.
      checksum_of: computes the checksum of the data from a frozen `config.data`.

    Raises:
      UserError: an input or a setting differs.
    """
    if not (homes := [home for home in homes if (home / BEGAN).exists()]):
        return
    sources = {
        'data': lambda: checksum_of(FrozenConfigDict(config.data)),
        'model.weights': lambda: experiment_lib.weights_hash(config.model.weights),
    }
    if file := config.data.partition_file:
        sources['partition'] = lambda: data.load_partition(file).content_hash
    now = machine.settings()
    for key, read in sources.items():
        try:
            now[key] = read()
        except UserError as error:
            warn(f'{key}: not compared with what {homes[0]} began with: {error}')
    for home in homes:
        old = read_began(home)
        differing = [f'{key}: {old[key][:12]} -> {now[key][:12]}' for key in now if old.get(key, now[key]) != now[key]]
        if differing:
            restore = 'restore what it was, or choose another --workdir'
            raise UserError(f'{home} began with something else ({"; ".join(differing)}); {restore}')


def check_name(folder: Path) -> None:
    """Checks that Orbax, which reads some paths as patterns, can save below `folder`.

    Raises:
      UserError: it cannot.
    """
    path = folder.absolute().as_posix()
    if wrong := [sign for sign in '*?[\\' if sign in path]:
        raise UserError(f"checkpoints cannot be saved in {path}, as it has '{wrong[0]}'; choose another --workdir")


def busy(folder: Path) -> str:
    """Returns a message that another process runs in `folder`, and what to do; '' if none does."""
    if not os.path.lexists(folder / '.lock'):
        return ''
    try:
        with file_io.writing('--workdir'), file_io.lock(folder / '.lock'):
            return ''
    except file_io.Locked as error:
        return str(error)


@contextmanager
def lock_folder(folder: Path, config: ConfigDict, trial: Experiment | None) -> Iterator[None]:
    """Creates and locks `folder` for the duration of the block, and writes config.json, partition.npz and began.json.

    Args:
      folder: folder of the run or of a trial.
      config: its configuration, resolved.
      trial: None for the folder of several trials, each of which has its own.

    Raises:
      UserError: the folder is not writable, or another process is running in it.
    """
    with ExitStack() as stack:
        with file_io.writing('--workdir'):
            file_io.make_folder(folder)
            stack.enter_context(file_io.lock(folder / '.lock'))
            check_folder(folder, config)  # again, now locked: another process may have been here
            file_io.write_json(folder / 'config.json', config.to_dict())
            if trial and not (folder / 'partition.npz').exists():
                data.save(trial.partition, folder / 'partition.npz', '--workdir')
            if trial and not (folder / BEGAN).exists():
                file_io.write_json(folder / BEGAN, file_io.seal(experiment_lib.began(trial)))
        yield


def finished(folder: Path, rounds: int) -> dict[str, Any] | None:
    """Returns the intact summary.json of a run with at least `rounds` rounds, else None."""
    try:
        summary = file_io.read_object(folder / SUMMARY)
    except UserError:
        return None
    return summary if file_io.is_sealed(summary) and summary['rounds'] >= rounds else None


def read_finished(folder: Path, config: ConfigDict, given: data.Dataset | None = None) -> dict[str, Any] | None:
    """Returns the content of summary.json if a run is done, and checks that `folder` belongs to this run.

    The folder need not be writable. A run without an intact summary resumes from its last checkpoint and writes it
    again.

    Args:
      folder: folder of the run.
      config: its configuration, resolved.
      given: its data if no file has them.

    Returns:
      The content, None if the run is not done.

    Raises:
      UserError: the folder is not usable, another process is training in it, or the run or one of its trials has more
        rounds than are asked for.
    """
    check_folder(folder, config)
    homes, summary = trial_folders(folder, config), finished(folder, config.rounds)
    for home in homes:  # a trial may have gone on alone, and checkpoints of finished runs may have been removed
        completed = max(last_round(home), summary['rounds'] if summary else 0)
        if completed > config.rounds:
            raise UserError(
                f'{home} has already completed round {completed}, beyond config.rounds={config.rounds}; '
                f'use config.rounds={completed} or more, or another --workdir'
            )
    if summary:
        check_inputs(homes, config, partial(data.checksum_of, given=given))
        for home in homes:
            if fault := checkpoint.check(home / 'checkpoints', summary['rounds']):
                lost = 'its results stand, its models are lost; restore the checkpoint from a copy'
                warn(f'{home} is done, but its last checkpoint is unusable ({fault}): {lost}')
        return summary
    check_name(folder)
    if reason := busy(folder):
        raise UserError(reason)
    return None


def last_round(folder: Path) -> int:
    """Returns the last round of a trial that was saved, 0 for none."""
    return (checkpoint.rounds_saved(folder / 'checkpoints') or [0])[-1]


class RunFolder:
    """The folder `path` of a run of R trials that is about to train, and the folders of its trials, `homes` [R]."""

    def __init__(self, path: Path, config: ConfigDict, trials: Sequence[Experiment]):
        self.path, self.homes = path, trial_folders(path, config)
        self._config, self._trials = config, trials
        self._identities = [experiment_lib.identity(trial.config, trial.partition) for trial in trials]
        self._saved = list(map(last_round, self.homes))

    def restore(self, template: Any) -> tuple[checkpoint.Restored, list[metrics.Records]] | None:
        """Restores the last checkpoints of the trials, and the lines of metrics.jsonl up to there.

        Args:
          template: as in `checkpoint.restore`.

        Returns:
          The checkpoints and the lines [R]; None if there are no checkpoints.

        Raises:
          UserError: the checkpoints are unusable, or metrics.jsonl or summary.json does not match them.
        """
        restored = checkpoint.restore([home / 'checkpoints' for home in self.homes], template, self._identities)
        # If some trials have a checkpoint and others none, the run was killed at its first save, after the lines of
        # these rounds had been written for all. Anything else is not such a run, and must not be overwritten.
        completed = restored.round if restored else max(self._saved)
        notes = restored.notes if restored else [{}] * len(self.homes)
        records = []
        for home, trial_notes in zip(self.homes, notes, strict=True):
            if not completed and os.path.lexists(home / SUMMARY):
                raise UserError(
                    f'{home} holds a {SUMMARY} but no checkpoint to resume from; restore its checkpoints, or choose '
                    'another --workdir'
                )
            records.append(metrics.check_rounds(home / 'metrics.jsonl', completed, trial_notes.get('checksum')))
        if restored and (self.homes[0] / BEGAN).exists():
            began, now = read_began(self.homes[0])['devices'], self._trials[0].devices
            if began != now:
                what = f'{self.path} began on {count(began, "device")} and resumes on {now}'
                warn(f'{what}: sums differ in their order, and later rounds in their last digits')
        return (restored, records) if restored else None

    @contextmanager
    def writer(self, completed: int) -> Iterator[Listener]:
        """Yields a listener that writes metrics, TensorBoard events, diagnostics and checkpoints as they are reported.

        It first removes what an interrupted run wrote after round `completed`.

        Raises:
          UserError: the folder is not writable, or another process is running in it; also from the listener.
        """
        with ExitStack() as stack:
            if self._config.seeds:
                stack.enter_context(lock_folder(self.path, self._config, None))
            for home, trial in zip(self.homes, self._trials, strict=True):
                stack.enter_context(lock_folder(home, trial.config, trial))
            if list(map(last_round, self.homes)) != self._saved:
                raise UserError(f'another process has trained in {self.path} since this one began; start it again')
            boards = []
            for home in self.homes:
                metrics.truncate(home / 'metrics.jsonl', completed)
                checkpoint.remove_after(home / 'checkpoints', completed)
                diagnostics.cut_back(home, completed)
                boards.append(stack.enter_context(closing(open_events(home / 'tensorboard', completed + 1))))
            yield partial(self._write, boards)

    def _write(self, boards: Sequence[EventsWriter], event: Event) -> None:
        """Writes the parts of an event that belong to each trial; `boards` [R] are those of TensorBoard."""
        match event:
            case RoundDone(records):
                for home, board, record in zip(self.homes, boards, records, strict=True):
                    metrics.append(home / 'metrics.jsonl', record)
                    log_events(board, record)
            case Diagnosed(completed, arrays):
                for home, named_arrays in zip(self.homes, arrays, strict=True):
                    diagnostics.save(home, completed, named_arrays)
            case Snapshot(completed, states, controllers, checksums):
                # Trials are saved one after another, and all must share one complete round
                count = max(self._config.checkpoints_kept, min(len(self.homes), 2))
                for r, home in enumerate(self.homes):
                    tree = {'algorithm': states[r], 'frequency': controllers[r]}
                    file_io.sync(home / 'metrics.jsonl')  # without its lines, a checkpoint is of no use
                    about = self._identities[r], {'checksum': checksums[r]}, count
                    checkpoint.save(home / 'checkpoints', completed, tree, *about)

    def write_summaries(self, summaries: Sequence[dict[str, Any]], summary: dict[str, Any]) -> None:
        """Writes summary.json of every trial and, with several seeds, then that of the run."""
        for home, content in zip(self.homes, summaries, strict=True):
            file_io.write_json(home / SUMMARY, content)
        if self._config.seeds:
            file_io.write_json(self.path / SUMMARY, summary)


def open_events(folder: Path, first_round: int) -> EventsWriter:
    """Opens a new file of TensorBoard events, which hides what other files of the folder have from `first_round` on.

    The process writes it itself. tensorboardX's SummaryWriter leaves that to a thread, which a full disk ends: the run
    would wait forever once that thread's queue is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The name has the second and the round: if two starts share both, the later one deletes only what it would hide
    events, start = EventsWriter(str(folder / 'events'), f'.{first_round:09}'), SessionLog(status=SessionLog.START)
    events.write_event(TensorBoardEvent(wall_time=time.time(), step=first_round, session_log=start))
    return events


def log_events(events: EventsWriter, record: dict[str, Any]) -> None:
    """Logs one line of metrics.jsonl as scalars.

    They are grouped under FAKE for synthetic images, and scores under VALIDATION if they are of validation images.
    """
    group, scalars = 'FAKE/' if record.get('fake') else '', Summary()
    for key, value in record.items():
        if key not in ('round', *checks.MARKS) and value is not None:
            part = 'VALIDATION/' if record.get('validation') and tasks.split_key(key) else ''
            scalars.value.add(tag=group + part + key, simple_value=value)
    events.write_event(TensorBoardEvent(wall_time=time.time(), step=record['round'], summary=scalars))
    events.flush()
