"""The folder of a run: which run owns it, and whether it is writable. With several seeds, each has a subfolder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, warn
from semisfl_jax.training import own_code

SUMMARY = 'summary.json'


def of_trials(folder: Path, config: ConfigDict) -> list[Path]:
    """The folder of every trial: `folder` itself, or with several seeds its subfolders seed_N."""
    return [folder / f'seed_{seed}' for seed in config.seeds] or [folder]


def check(folder: Path, config: ConfigDict) -> None:
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
        content = file_io.read_object(file)
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
def hold(folder: Path, config: ConfigDict, partition: data.Partition | None) -> Iterator[None]:
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
            file_io.write_json(folder / 'config.json', config.to_dict())
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
        summary = file_io.read_object(file)
    except UserError as error:
        return None, str(error)
    return (summary, '') if file_io.is_sealed(summary) else (None, f'{file} was modified after the run wrote it')


def set_aside_summary(folder: Path, config: ConfigDict) -> None:
    """Renames, rather than overwrites, a summary.json that is invalid or not from a run of `config`.

    For a run that holds `folder` and is about to write a new one.
    """
    _, fault = summary_of(folder, config)
    if fault:
        aside = file_io.set_aside(folder / SUMMARY)
        warn(f'{fault}; it is renamed to {aside.name}, and rewritten from the checkpoint')
