"""The folder of a run: which run it belongs to, resuming from it, and writing there what the run reports.

For process 0 alone. With several seeds, each trial has a subfolder. `checkpoint`, `metrics` and `diagnostics` define
the formats of the files.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.base import file_io, machine
from semisfl_jax.base.errors import UserError, count, warn
from semisfl_jax.data import arrays as arrays_lib
from semisfl_jax.training import checkpoint, diagnostics, metrics
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.callbacks import BEST
from semisfl_jax.training.events import Callback, Diagnosed, Event, RoundDone
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


def read_early(folder: Path, rounds: Sequence[int]) -> dict[str, Any] | None:
    """Returns the intact summary.json of a run whose trials ended after these rounds [R], else None."""
    summary = finished(folder, 0)
    ended = [trial['rounds'] for trial in summary.get('trials', [summary])] if summary else []
    return summary if ended == [*rounds] else None


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
        self.by_seed = {trial.config.seed: home for trial, home in zip(trials, self.homes, strict=True)}
        self._identities = [experiment_lib.identity(trial.config, trial.partition) for trial in trials]
        self._saved = list(map(last_round, self.homes))

    def restore(self, template: Any) -> tuple[list[checkpoint.Restored], list[metrics.Records]] | None:
        """Restores the last checkpoints of the trials, and the lines of metrics.jsonl up to there.

        Args:
          template: as in `checkpoint.restore`.

        Returns:
          The checkpoints [R] and the lines [R]; None if a trial has no checkpoint.

        Raises:
          UserError: the checkpoints are unusable, or metrics.jsonl or summary.json does not match them.
        """
        restored = checkpoint.restore([home / 'checkpoints' for home in self.homes], template, self._identities)
        # If some trials have a checkpoint and others none, the run was killed at its first save, after the lines of
        # these rounds had been written for all. Anything else is not such a run, and must not be overwritten.
        records, nothing = [], checkpoint.Restored(max(self._saved), None, {})
        for home, (completed, _, notes) in zip(self.homes, restored or [nothing] * len(self.homes), strict=True):
            if not completed and os.path.lexists(home / SUMMARY):
                raise UserError(
                    f'{home} holds a {SUMMARY} but no checkpoint to resume from; restore its checkpoints, or choose '
                    'another --workdir'
                )
            records.append(metrics.check_rounds(home / 'metrics.jsonl', completed, notes.get('checksum')))
        if restored and (self.homes[0] / BEGAN).exists():
            began, now = read_began(self.homes[0])['devices'], self._trials[0].devices
            if began != now:
                what = f'{self.path} began on {count(began, "device")} and resumes on {now}'
                warn(f'{what}: sums are taken in a different order, so later rounds may differ in their last digits')
        return (restored, records) if restored else None

    @contextmanager
    def writer(self, completed: Sequence[int]) -> Iterator[Callback]:
        """Yields a callback that writes metrics and diagnostics as they are reported.

        It first removes what an interrupted run wrote after the rounds `completed` [R].

        Raises:
          UserError: the folder is not writable, or another process is running in it; also from the callback.
        """
        with ExitStack() as stack:
            if self._config.seeds:
                stack.enter_context(lock_folder(self.path, self._config, None))
            for home, trial in zip(self.homes, self._trials, strict=True):
                stack.enter_context(lock_folder(home, trial.config, trial))
            if list(map(last_round, self.homes)) != self._saved:
                raise UserError(f'another process has trained in {self.path} since this one began; start it again')
            for home, number in zip(self.homes, completed, strict=True):
                metrics.truncate(home / 'metrics.jsonl', number)
                for name in ('checkpoints', BEST):
                    checkpoint.remove_after(home / name, number)
                diagnostics.cut_back(home, number)
            yield self._write

    def _write(self, event: Event) -> None:
        """Writes the parts of an event that belong to each trial."""
        match event:
            case RoundDone(_, lines):
                for seed, (*_, record) in lines.items():
                    metrics.append(self.by_seed[seed] / 'metrics.jsonl', record)
            case Diagnosed(completed, arrays):
                for seed, named_arrays in arrays.items():
                    diagnostics.save(self.by_seed[seed], completed, named_arrays)

    def save(
        self, name: str, number: int, trees: Mapping[int, Any], checksums: Sequence[str], checkpoints_kept: int
    ) -> None:
        """Saves trees, by index of the trial, as checkpoints of round `number` in the folder `name` of each.

        `checksums` [R] are those of the lines of metrics.jsonl. Raises UserError if a checkpoint cannot be written.
        """
        for r, tree in trees.items():
            file_io.sync(self.homes[r] / 'metrics.jsonl')  # without its lines, a checkpoint is of no use
            about = self._identities[r], {'checksum': checksums[r]}, checkpoints_kept
            checkpoint.save(self.homes[r] / name, number, tree, *about)

    def write_summaries(self, summaries: Mapping[int, dict[str, Any]], summary: dict[str, Any] | None = None) -> None:
        """Writes summary.json of trials, by index, and then `summary`, that of a run of several seeds."""
        for r, content in summaries.items():
            file_io.write_json(self.homes[r] / SUMMARY, content)
        if summary and self._config.seeds:
            file_io.write_json(self.path / SUMMARY, summary)
