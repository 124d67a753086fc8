"""Checkpoints, written atomically by Orbax, each with a description of the run that it is from in the same commit."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import CheckpointManager

import semisfl_jax
from semisfl_jax.core.errors import UserError, first_line, shorten, warn

_STATE, _ABOUT = 'state', 'about'  # the items of a checkpoint
_ENCODER = "['algorithm'].student.bottom"  # of a state of dense tasks: by kind and task
_ALONE = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})  # without waiting for other processes
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')  # that the numbers of a run may depend on


class Identity(NamedTuple):
    """The run that checkpoints belong to."""

    seed: int
    config_hash: str  # `config.identity_hash`
    partition_hash: str  # `Partition.content_hash`


class Restored(NamedTuple):
    """The checkpoints of R trials after the same round."""

    round: int  # rounds completed
    states: list[Any]  # [R], structured as the template, leaves on the host
    notes: list[Any]  # [R], as passed to `save`


def open_manager(folder: Path, max_to_keep: int) -> CheckpointManager:
    """A manager of the last `max_to_keep` checkpoints in `folder`, which is created. For process 0 only."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=max_to_keep, enable_async_checkpointing=False, create=False, multiprocessing_options=_ALONE
    )
    return CheckpointManager(folder.absolute(), options=options)


def rounds_saved(folder: Path) -> list[int]:
    """The rounds for which `folder` holds a checkpoint, oldest first. Other contents are ignored."""
    return [number for number in _numbers(folder) if any((folder / str(number)).iterdir())]


def _numbers(folder: Path) -> list[int]:
    """The folders in `folder` that Orbax takes for checkpoints, empty or not."""
    if not folder.is_dir():
        return []
    numbered = [path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir()]
    return sorted(int(path.name) for path in numbered if path.name[0] != '0')


def save(
    manager: CheckpointManager, round_number: int, state: Any, identity: Identity, notes: Mapping[str, Any]
) -> None:
    """Saves the checkpoint after `round_number` rounds: a pytree of arrays and numbers, and notes for JSON.

    Raises:
      UserError: it cannot be written, most likely on a full disk. Earlier ones stay.
    """
    leaves = _named(jax.device_get(state))
    about = {
        'round': round_number,
        **identity._asdict(),
        'leaves': _shapes(leaves),
        'sha256': _digest(leaves),
        'versions': installed_versions(),
        'notes': notes,
    }
    items = {_STATE: ocp.args.StandardSave(leaves), _ABOUT: ocp.args.JsonSave(about)}
    try:
        with _quiet():
            manager.save(round_number, args=ocp.args.Composite(**items))
    except (OSError, ValueError) as error:  # the latter from tensorstore
        full = 'RESOURCE_EXHAUSTED' in str(error) or getattr(error, 'errno', None) in (errno.ENOSPC, errno.EDQUOT)
        reason = 'no space left on the device' if full else first_line(error)[:100]
        raise UserError(
            f'the checkpoint of round {round_number} cannot be written to {manager.directory} ({reason}); make room '
            'there; the same command then resumes from the last one'
        ) from error


def restore(folders: Sequence[Path], template: Any, identities: Sequence[Identity]) -> Restored | None:
    """The newest round for which every trial [R] has a usable checkpoint; None if some trial has none at all.

    Trials are saved one after another, so a kill may leave the last ones a save behind. Checkpoints that are damaged,
    or of another round or run, are passed over with a warning. Another one lists packages whose versions differ from
    those that the checkpoint was made with. `template` has the structure, shapes and types of the state of a trial.

    Raises:
      UserError: no round has a usable checkpoint of every trial.
    """
    saved = [rounds_saved(folder) for folder in folders]
    if not all(saved):
        return None
    unfit: list[str] = []
    for number in sorted(set.intersection(*map(set, saved)), reverse=True):
        paths = [folder / str(number) for folder in folders]
        states, abouts, faults = zip(*map(_read, paths, [template] * len(paths), identities), strict=True)
        if not any(faults):
            for passed_over in unfit:
                warn(f'a checkpoint is passed over: {passed_over}')
            old, new = abouts[0]['versions'], installed_versions()
            names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
            if names:
                differing = [f'{name} {old.get(name, "unknown")} (now {new.get(name, "unknown")})' for name in names]
                warn(
                    f'the checkpoint of round {number} in {folders[0]} was made with {", ".join(differing)}; '
                    'later rounds may differ in their last digits from those of an uninterrupted run'
                )
            return Restored(number, list(states), [about['notes'] for about in abouts])
        unfit += [f'{path}: {fault}' for path, fault in zip(paths, faults, strict=True) if fault]
    reason = '; '.join(unfit) or f'rounds {saved}, of which no one has a checkpoint of every trial'
    raise UserError(
        f'no checkpoint in {", ".join(map(str, folders))} can be used ({reason}); restore one from a copy, or start '
        'in another --workdir'
    )


def read(folder: Path, round_number: int, template: Any, identity: Identity) -> Any:
    """The state of one checkpoint of `rounds_saved`; the others as in `restore`.

    Raises:
      UserError: the checkpoint is damaged, or not of this round of this run.
    """
    state, _, fault = _read(folder / str(round_number), template, identity)
    if fault:
        raise UserError(f'the checkpoint of round {round_number} in {folder} cannot be used: {fault}')
    return state


def read_encoder(folder: Path, round_number: int, tasks: Sequence[str]) -> dict[str, np.ndarray]:
    """The encoder of a checkpoint of M-Fed or of FL per task, as the mean over its `tasks`, by the names of
    `models.load_encoder`.

    Raises:
      UserError: the checkpoint is damaged, or of another method.
    """
    path = folder / str(round_number)
    try:
        with _quiet():
            about = _load(path / _ABOUT, ocp.JsonCheckpointHandler)
            shapes = {name: text.split(' ', 1) for name, text in about['leaves'].items()}
            abstract = {name: np.empty(json.loads(shape), kind) for name, (kind, shape) in shapes.items()}
            read = _content(path, about, abstract)
    except Exception as error:  # as in `_read`
        raise UserError(f'the checkpoint {path} cannot be read ({first_line(error)[:100]})') from error
    of_tasks: dict[str, list[np.ndarray]] = {}
    for name in filter(lambda name: name.startswith(_ENCODER), read):
        kind, task, *parts = re.findall(r"\['(\w+)'\]", name.removeprefix(_ENCODER))
        if task in tasks:
            of_tasks.setdefault('/'.join((kind, *parts)), []).append(np.asarray(read[name]))
    if not of_tasks or any(name.startswith("['algorithm'].clients") for name in read):
        raise UserError(f'{path} has no encoder of tasks that clients train together')
    return {name: np.mean(leaves, axis=0) for name, leaves in of_tasks.items()}


def remove_after(folder: Path, round_number: int) -> None:
    """Removes the checkpoints after round `round_number`; a run that resumes from there writes them again. Also empty
    folders, beside which Orbax would save nothing."""
    for number in _numbers(folder):
        if number > round_number:
            shutil.rmtree(folder / str(number))


def installed_versions() -> dict[str, str]:
    """Versions of this package and of those that it computes and saves with."""
    return {'semisfl_jax': semisfl_jax.__version__} | {name: importlib.metadata.version(name) for name in _PACKAGES}


def commit() -> str:
    """The commit of the checkout that this code is in, with '+' for uncommitted changes, or the installed version."""
    checkout = Path(semisfl_jax.__file__).parents[1]
    if (checkout / 'launch.py').is_file():
        git = ['git', '-C', str(checkout), 'describe', '--always', '--abbrev=12', '--exclude=*', '--dirty=+']
        with suppress(OSError, subprocess.SubprocessError):  # no git, or no repository
            return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return f'version {semisfl_jax.__version__}'


def _read(folder: Path, template: Any, identity: Identity) -> tuple[Any, dict[str, Any], str]:
    """State and description of the checkpoint `folder`, and why it is unusable, '' if it is usable."""
    leaves = _named(template)
    wanted = {'round': int(folder.name), **identity._asdict(), 'leaves': _shapes(leaves)}
    try:
        with _quiet():
            about = _load(folder / _ABOUT, ocp.JsonCheckpointHandler)
            for key, value in wanted.items():
                if about[key] != value:
                    return None, {}, f'it has {key}={shorten(about[key])}, not {shorten(value)}'
            abstract = {name: np.empty(np.shape(leaf), leaf.dtype) for name, leaf in leaves.items()}
            read = _content(folder, about, abstract)
    except Exception as error:  # Orbax and tensorstore raise errors of many kinds here
        return None, {}, f'it cannot be read ({first_line(error)[:100]})'
    state = [read[name] if name in read else np.empty(np.shape(leaf), leaf.dtype) for name, leaf in _paths(template)]
    return jax.tree.unflatten(jax.tree.structure(template), state), about, ''


def _content(folder: Path, about: Mapping[str, Any], abstract: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    read = _load(folder / _STATE, ocp.StandardCheckpointHandler, args=ocp.args.StandardRestore(abstract))
    digest = _digest(read)
    if about.get('sha256', digest) != digest:  # earlier checkpoints have none
        raise ValueError('its content does not have its checksum')
    return read


def _load(path: Path, handler: type, **options: Any) -> Any:
    with ocp.Checkpointer(handler(multiprocessing_options=_ALONE), multiprocessing_options=_ALONE) as checkpointer:
        return checkpointer.restore(path.absolute(), **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """A block in which Orbax does not print a traceback from each of its threads when it fails. Some come later, as the
    event loop that waited for them is closed: after a failure these stay silent."""
    logger, hook = logging.getLogger('absl'), sys.unraisablehook
    previous_level = logger.level
    logger.setLevel(logging.CRITICAL)
    sys.unraisablehook = lambda late: None if str(late.exc_value) == 'Event loop is closed' else hook(late)
    try:
        yield
        sys.unraisablehook = hook
    finally:
        logger.setLevel(previous_level)


def _paths(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by path, without empty arrays, which Orbax does not accept."""
    return {name: leaf for name, leaf in _paths(tree) if np.size(leaf)}


def _digest(leaves: Mapping[str, Any]) -> str:
    """SHA-256 over the bytes of leaves, in the order of their paths."""
    found = hashlib.sha256()
    for name in sorted(leaves):
        found.update(np.asarray(leaves[name]).tobytes())
    return found.hexdigest()


def _shapes(leaves: Mapping[str, Any]) -> dict[str, str]:
    return {name: f'{np.dtype(leaf.dtype).name} {list(np.shape(leaf))}' for name, leaf in leaves.items()}
