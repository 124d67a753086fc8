"""The folder of a run: which run owns it, and whether it is writable. With several seeds, each has a subfolder."""

from __future__ import annotations

import errno
import fcntl
import inspect
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent
from tensorboardX.proto.event_pb2 import SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from semisfl_jax import config as config_lib
from semisfl_jax import core, data, tasks
from semisfl_jax.core import atomic_io, compilation, hosts, user_files
from semisfl_jax.core.errors import UserError, warn
from semisfl_jax.core.wording import shorten
from semisfl_jax.training import checkpoint, diagnostics, metrics, own_code, simulation
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.events import Diagnosed, Event, Listener, RoundDone, Snapshot
from semisfl_jax.training.experiment import Experiment

SUMMARY = 'summary.json'


def trial_folders(folder: Path, config: ConfigDict) -> list[Path]:
    """The folder of every trial: `folder` itself, or with several seeds its subfolders seed_N."""
    return [folder / f'seed_{seed}' for seed in config.seeds] or [folder]


def check_folder(folder: Path, config: ConfigDict) -> None:
    """Makes sure, without writing, that a run of `config` (resolved) may write to `folder` or create it. Warns if the
    user's own code was another when the run began.

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
        content = atomic_io.read_object(file)
    except UserError as error:
        raise UserError(f'{error}; restore it from a copy, or choose another --workdir') from error
    if differing := config_lib.differences(config, content):
        advice = 'choose another --workdir'
        if all(line.startswith('seeds: ') for line in differing):
            advice = 'train the new seeds alone in another --workdir, and give both folders to compare and plots'
        raise UserError(f'{folder} belongs to a different configuration ({"; ".join(differing[:6])}); {advice}')
    own_code.check(folder, config)


def check_partition(folder: Path, partition: data.Partition) -> None:
    """Makes sure that a split is the one that the run in `folder` started with.

    Raises:
      UserError: it is not, or the file is damaged.
    """
    file, advice = folder / 'partition.npz', 'delete it, and the run writes it again'
    if file.exists() and data.load_partition(file, advice=advice).content_hash != partition.content_hash:
        raise UserError(f'the data or their split differ from those of {file}; choose another --workdir')


@contextmanager
def lock_folder(folder: Path, config: ConfigDict, partition: data.Partition | None) -> Iterator[None]:
    """Creates `folder`, writes config.json and partition.npz, and locks out other processes for the duration of the
    block.

    `partition` is None for the folder of several trials, each of which has its own.

    Raises:
      UserError: the folder is not writable, or another process is running in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / '.lock').open('w') as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f'another process is running in {folder}; wait for it, or stop it first') from error
            if not (folder / 'config.json').exists():
                own_code.write(folder, config)
            atomic_io.write_json(folder / 'config.json', config.to_dict())
            if partition and not (folder / 'partition.npz').exists():
                data.save(partition, folder / 'partition.npz')
            yield
    except OSError as error:
        file = Path(error.filename or '')
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # after room was made, the same command goes on here
        if error.filename and not full and (file.is_relative_to(folder) or folder.is_relative_to(file)):
            raise UserError(f'cannot write {error.filename}: {error.strerror}; choose another --workdir') from error
        raise


def finished(folder: Path, rounds: int) -> dict[str, Any] | None:
    """The intact summary.json of a run with at least `rounds` rounds; else None."""
    summary, _ = _summary(folder)
    return summary if summary and summary['rounds'] >= rounds else None


def summary_of(folder: Path, config: ConfigDict) -> tuple[dict[str, Any] | None, str]:
    """summary.json of a run of `config` (resolved) and '', or None and what is wrong with it ('' if it is missing)."""
    summary, fault = _summary(folder)
    if summary and summary.get('config_hash') != config_lib.identity_hash(config):
        return None, f'{folder / SUMMARY} belongs to another run'
    return summary, fault


def _summary(folder: Path) -> tuple[dict[str, Any] | None, str]:
    file = folder / SUMMARY
    if not os.path.lexists(file):
        return None, ''
    try:
        summary = atomic_io.read_object(file)
    except UserError as error:
        return None, str(error)
    return (summary, '') if atomic_io.is_sealed(summary) else (None, f'{file} was modified after the run wrote it')


def set_aside_summary(folder: Path, config: ConfigDict) -> None:
    """Renames, rather than overwrites, a summary.json that is invalid or not from a run of `config`.

    For a run that holds `folder` and is about to write a new one.
    """
    _, fault = summary_of(folder, config)
    if fault:
        aside = atomic_io.set_aside(folder / SUMMARY)
        warn(f'{fault}; it is renamed to {aside.name}, and rewritten from the checkpoint')


# The file of a run's TensorBoard events, one for each line of metrics.jsonl.
#
# The process writes it itself. tensorboardX's SummaryWriter leaves that to a thread, which a full disk ends: the run
# would learn of it from a traceback at its end at the earliest, and wait forever once that thread's queue is full.

FLUSH_SECONDS = 10  # after so many, the next event brings what was written to the disk


class EventFile:
    """An open file of events."""

    def __init__(self, folder: Path, first_round: int) -> None:
        """Opens a new file. TensorBoard hides events that other files of the folder have from `first_round` on.

        Raises:
          OSError: the file cannot be written; so do the other methods.
        """
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with self._naming():
            self._writer = EventsWriter(str(folder / 'events'))
        self._flushed = time.monotonic()
        self._write(TensorBoardEvent(step=first_round, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, scalars: Summary) -> None:
        """Appends the scalars of a step as one event."""
        self._write(TensorBoardEvent(step=step, summary=scalars))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            with self._naming():
                self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes what is left, and closes the file."""
        with self._naming():
            self._writer.close()

    def _write(self, event: TensorBoardEvent) -> None:
        event.wall_time = time.time()
        with self._naming():
            self._writer.write_event(event)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Says in an error of the disk what could not be written."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder)) from error


def log_events(events: EventFile, record: dict[str, Any]) -> None:
    """Logs one line of metrics.jsonl as scalars, grouped under FAKE for synthetic images, scores under VALIDATION
    if they are of validation images."""
    group, scalars = 'FAKE/' if record.get('fake') else '', Summary()
    for key, value in record.items():
        if key not in ('round', 'fake', 'validation') and value is not None:
            part = 'VALIDATION/' if record.get('validation') and tasks.split_key(key) else ''
            scalars.value.add(tag=group + part + key, simple_value=value)
    events.add(record['round'], scalars)


# The outputs of a run as files: finding a finished run, resuming an interrupted one, writing what is reported.
#
# For process 0 alone. `workdir` says which run a folder belongs to, `checkpoint`, `metrics` and `diagnostics` write.


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
    events: EventFile  # of TensorBoard
    manager: checkpoint.CheckpointManager


def read_finished(folder: Path, config: ConfigDict) -> dict[str, Any] | None:
    """The content of summary.json if the run is done, else None. Also checks that `folder` is usable.

    A run whose summary was modified does not count as done: it resumes from its last checkpoint and rewrites it.

    Args:
      folder: of the run.
      config: resolved.

    Raises:
      UserError: the folder is not usable, or the run or one of its trials has more rounds than are asked for.
    """
    check_folder(folder, config)
    summary, _ = summary_of(folder, config)
    if summary is None or summary['rounds'] < config.rounds:
        return None
    _check_not_beyond(folder, summary['rounds'], config.rounds)
    trials = [
        (home, *summary_of(home, trial))
        for home, trial in zip(trial_folders(folder, config), config_lib.trials(config), strict=True)
    ]
    if any(fault for *_, fault in trials):
        return None
    if config.data.partition_file:
        partition = data.load_partition(config.data.partition_file)
        for home, *_ in trials:
            check_partition(home, partition)
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
        if missing := diagnostics.missing(home, config.rounds, config.diagnostics_every):
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


def restore_checkpoints(homes: Sequence[Home], rounds: int, template: Any) -> checkpoint.Restored | None:
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
        if not completed and os.path.lexists(home.folder / SUMMARY):
            raise UserError(
                f'{home.folder} holds a {SUMMARY} but no checkpoint to resume from; restore its checkpoints, '
                'or choose another --workdir'
            )
        metrics.check_rounds(home.lines, completed)
    if restored:
        for home, notes in zip(homes, restored.notes, strict=True):
            _compare_lines(home.folder, restored.round, notes['metrics_sha256'])
    return restored


def contents(homes: Sequence[Home]) -> list[tuple[list[int], bool]]:
    """What is there of each trial: the rounds of its checkpoints, and whether it has a summary."""
    return [(checkpoint.rounds_saved(home.checkpoints), os.path.lexists(home.folder / SUMMARY)) for home in homes]


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
            stack.enter_context(lock_folder(folder, config, None))
            # Trials are saved one after another, and all must share one complete round.
            max_to_keep = max(max_to_keep, 2)
        for experiment, trial_folder in homes:
            stack.enter_context(lock_folder(trial_folder, experiment.config, experiment.partition))
        if contents(homes) != seen:
            raise UserError(f'another process has since continued the run in {folder}; run the same command again')
        for experiment, trial_folder in homes:
            set_aside_summary(trial_folder, experiment.config)
        if config.seeds:
            set_aside_summary(folder, config)
        outputs = []
        for home in homes:
            metrics.truncate(home.lines, completed)
            checkpoint.cut_back(home.checkpoints, completed)
            diagnostics.cut_back(home.folder, completed)
            manager = stack.enter_context(closing(checkpoint.open_manager(home.checkpoints, max_to_keep)))
            events = stack.enter_context(closing(EventFile(home.folder / 'tensorboard', completed + 1)))
            outputs.append(Outputs(home, events, manager))
        yield partial(_write, outputs)


def _write(outputs: Sequence[Outputs], event: Event) -> None:
    """Writes what an event reports about each trial."""
    match event:
        case RoundDone(records):
            for out, record in zip(outputs, records, strict=True):
                metrics.append_line(out.home.lines, record)
                log_events(out.events, record)
        case Diagnosed(completed, arrays):
            for out, named_arrays in zip(outputs, arrays, strict=True):
                diagnostics.save(out.home.folder, completed, named_arrays)
        case Snapshot(completed, states, controllers, accounts):
            for out, state, controller, account in zip(outputs, states, controllers, accounts, strict=True):
                tree = {'algorithm': state, 'frequency': controller}
                checkpoint.save(out.manager, completed, tree, out.home.identity, metrics.totals_to_json(account))


def write_summaries(
    homes: Sequence[Home], folder: Path, summaries: Sequence[dict[str, Any]], summary: dict[str, Any]
) -> None:
    """Writes summary.json of every trial and, with several seeds, then that of the run."""
    for home, content in zip(homes, summaries, strict=True):
        atomic_io.write_json(home.folder / SUMMARY, content)
    if summary is not summaries[0]:
        atomic_io.write_json(folder / SUMMARY, summary)


# The trials of a run in its folder: built, and restored from their last checkpoints. For all processes of the run.


@compilation.without_collecting()
def build_trials(config: ConfigDict, folder: Path | None) -> list[Experiment]:
    """The trials of `config` (resolved), each with a folder that was checked to be usable."""
    configs = config_lib.trials(config)
    folders = trial_folders(folder, config) if folder else []
    for home, trial in zip(folders, configs, strict=False):
        hosts.on_first(partial(check_folder, home, trial))
    with hosts.together():
        trials = experiment_lib.build_trials(configs)
    for home, trial in zip(folders, trials, strict=False):
        hosts.on_first(partial(check_partition, home, trial.partition))
    hosts.check_same('the data or their split', [trial.partition.content_hash for trial in trials])
    return trials


def trial_homes(trials: Sequence[Experiment], folder: Path | None, config: ConfigDict) -> list[Home]:
    """Each trial with its folder; none without a folder."""
    return list(map(Home, trials, trial_folders(folder, config))) if folder else []


def restore_trials(found: Sequence[Home], rounds: int) -> checkpoint.Restored | None:
    """The last checkpoints, as read by process 0; None if there are none."""
    first = found[0].experiment
    shapes = jax.eval_shape(simulation.init_state(first), first.key)
    template = {'algorithm': shapes, 'frequency': simulation.init_controller(first)}
    return hosts.from_first(lambda: restore_checkpoints(found, rounds, template))


def on_devices(experiment: Experiment, restored: checkpoint.Restored) -> list[Any]:
    """The restored state of the method, of every trial."""
    return [core.replicate(experiment.mesh, jax.tree.map(jnp.array, tree['algorithm'])) for tree in restored.state]


# Arguments of `train` that a program got wrong, before they leave a trace or end in another one's error.


def folder_of(folder: object) -> Path | None:
    """The folder of a run, with ~ expanded, None for no files.

    Raises:
      UserError: it is not a path, or no folder can have that name.
    """
    if folder is None:
        return None
    path = os.fspath(folder) if isinstance(folder, str | os.PathLike) else folder
    if not isinstance(path, str):
        raise UserError(f'folder={shorten(repr(folder))} is not a path; give a str or a Path, or None for no files')
    if not path:
        raise UserError(
            "folder='' would write into the current folder; name one, such as 'runs/a', or give None for no files"
        )
    path = os.fspath(user_files.expanded(path, 'folder'))
    try:
        os.lstat(path)
    except ValueError as error:  # a null character
        raise UserError(
            f'folder={shorten(repr(path))} cannot be the name of a folder ({error}); choose another'
        ) from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UserError(f'{error.strerror}: {path}; choose a shorter one') from error
    return Path(path)


def check_interrupts(interrupts: object) -> None:
    """Raises UserError unless `interrupts` can be called without an argument."""
    if isinstance(interrupts, AbstractContextManager):  # which may be callable, as a decorator
        raise UserError('interrupts is a block already; give the function that makes it, such as interrupt.listen')
    try:
        inspect.signature(interrupts).bind()  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(
            f'interrupts={shorten(repr(interrupts))} cannot be called without an argument ({error}); give '
            'semisfl_jax.training.interrupt.listen, or leave it out'
        ) from error
    except ValueError:  # a function in C may not tell its arguments
        return


def check_listener(on_event: object) -> None:
    """Raises UserError unless `on_event` is None or can be called with an event."""
    if on_event is None:
        return
    if isinstance(on_event, AbstractContextManager):  # which may be callable, as a decorator
        raise UserError('on_event is a block that was not entered; write `with console() as show:` and give show')
    if not callable(on_event):
        raise UserError(f'on_event={shorten(repr(on_event))} cannot be called; give a function of an event, or None')
    try:
        inspect.signature(on_event).bind(object())
    except TypeError as error:
        name = getattr(on_event, '__name__', repr(on_event))
        raise UserError(
            f'on_event={shorten(name)} cannot be called with an event ({error}); give a function of one argument, such '
            'as that of `with console() as show:`'
        ) from error
    except ValueError:  # a function in C may not tell its arguments
        return
