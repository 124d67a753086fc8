"""Checkpoints: Orbax writes each atomically, together with a description of its run.

Orbax syncs only the arrays. `save` syncs the rest before it removes older checkpoints, so one survives a power cut.
"""

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

import semisfl_jax
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, first_line, shorten, warn

_STATE, _ABOUT = 'state', 'about'  # the items of a checkpoint
_CUT = '*.orbax-checkpoint-tmp*'  # where Orbax writes until a save is complete
_ENCODER = "['algorithm'].student.bottom"  # in a state of dense tasks; kind and task follow
_ALONE = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})  # does not wait for other processes
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')  # their versions may affect a run's numbers


class Identity(NamedTuple):
    """The run that checkpoints belong to."""

    seed: int
    config_hash: str  # `config.identity_hash`
    partition_hash: str  # `Partition.content_hash`


class Restored(NamedTuple):
    """A checkpoint."""

    round: int  # rounds completed
    state: Any  # structured as the template, leaves on the host
    notes: Any  # as passed to `save`


def rounds_saved(folder: Path) -> list[int]:
    """Lists the rounds for which `folder` holds a checkpoint, oldest first; it ignores other contents."""
    return [number for number in _numbers(folder) if any((folder / str(number)).iterdir())]


def _numbers(folder: Path) -> list[int]:
    """Lists the folders in `folder` that Orbax takes for checkpoints, empty or not."""
    if not folder.is_dir():
        return []
    numbered = [path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir()]
    return sorted(int(path.name) for path in numbered if path.name[0] != '0')


def save(folder: Path, round_number: int, state: Any, identity: Identity, notes: Mapping[str, Any], count: int) -> None:
    """Saves the checkpoint after a round, then removes all but the last `count` once it would outlast a power cut.

    Args:
      folder: folder of the checkpoints.
      round_number: rounds completed.
      state: pytree of arrays and numbers.
      identity: the run that the checkpoint belongs to.
      notes: saved with the state, as JSON.
      count: number of checkpoints that stay in `folder`.

    Raises:
      UserError: the checkpoint cannot be written, most likely because the disk is full. Earlier ones stay.
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
        file_io.make_folder(folder)
        with _quiet(), _checkpointer(_both()) as checkpointer:
            checkpointer.save((folder / str(round_number)).absolute(), ocp.args.Composite(**items))
        file_io.sync(folder / str(round_number))
    except (OSError, ValueError) as error:  # tensorstore raises ValueError
        full = 'RESOURCE_EXHAUSTED' in str(error) or getattr(error, 'errno', None) in (errno.ENOSPC, errno.EDQUOT)
        reason = 'no space left on the device' if full else first_line(error)[:100]
        raise UserError(
            f'the checkpoint of round {round_number} cannot be written to {folder} ({reason}); make room there; '
            'the same command then resumes from the last one'
        ) from error
    for number in _numbers(folder)[:-count]:
        shutil.rmtree(folder / str(number))


def restore(folders: Sequence[Path], template: Any, identities: Sequence[Identity]) -> list[Restored] | None:
    """Restores the newest usable checkpoint of every trial, which need not be of the same round.

    Checkpoints that are damaged, or belong to another round or run, are skipped with a warning. Another warning lists
    packages whose versions differ from those that made the checkpoints.

    Args:
      folders: [R], one per trial.
      template: has the structure, shapes and types of the state of a trial.
      identities: [R], the run that each checkpoint must belong to.

    Returns:
      The checkpoints [R], or None if a trial has none at all.

    Raises:
      UserError: a trial has no usable one.
    """
    if not all(map(rounds_saved, folders)):
        return None
    restored, differing = [], dict[str, str]()
    for folder, identity in zip(folders, identities, strict=True):
        faults = []
        for number in reversed(rounds_saved(folder)):
            state, about, fault = _read(folder / str(number), template, identity)
            if not fault:
                restored.append(Restored(number, state, about['notes']))
                old, new = about['versions'], installed_versions()
                names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
                differing |= {
                    f'{name} {old.get(name, "unknown")} (now {new.get(name, "unknown")})': '' for name in names
                }
                break
            faults.append(f'{folder}/{number}: {fault}')
        else:
            raise UserError(
                f'no checkpoint in {folder} can be used ({"; ".join(faults)}); restore one from a copy, or start in '
                'another --workdir'
            )
        for fault in faults:
            warn(f'skipping a checkpoint: {fault}')
    if differing:
        warn(
            f'the checkpoints in {folders[0]} were made with {", ".join(differing)}; later rounds may differ in their '
            'last digits from those of an uninterrupted run'
        )
    return restored


def read(folder: Path, round_number: int, template: Any, identity: Identity) -> Any:
    """Reads the state of one checkpoint.

    Args:
      folder: folder of the checkpoints.
      round_number: one of `rounds_saved`.
      template: has the structure, shapes and types of the state.
      identity: the run that the checkpoint must belong to.

    Returns:
      The state, structured as `template`, leaves on the host.

    Raises:
      UserError: the checkpoint is damaged, or belongs to another round or run.
    """
    state, _, fault = _read(folder / str(round_number), template, identity)
    if fault:
        raise UserError(f'the checkpoint of round {round_number} in {folder} cannot be used: {fault}')
    return state


def digest(path: Path) -> str:
    """Returns the checksum of the state that the checkpoint `path` records.

    Raises:
      UserError: the checkpoint cannot be read.
    """
    return file_io.read_object(path / _ABOUT / 'metadata')['sha256']


def read_encoder(path: Path, tasks: Sequence[str]) -> dict[str, np.ndarray]:
    """Reads the encoder from a checkpoint of M-Fed or of FL per task, as the mean over tasks.

    Args:
      path: folder of the checkpoint.
      tasks: the tasks to average over.

    Returns:
      Arrays by the names that `models.load_encoder` uses.

    Raises:
      UserError: the checkpoint is damaged, or of another method.
    """
    try:
        with _quiet():
            read = _content(path, _load(path / _ABOUT, ocp.JsonCheckpointHandler))
    except Exception as error:  # as in `_read`
        raise UserError(f'the checkpoint {path} cannot be read ({first_line(error)[:100]})') from error
    leaves: dict[str, list[np.ndarray]] = {}  # by name, one a task
    for name in filter(lambda name: name.startswith(_ENCODER), read):
        kind, task, *parts = re.findall(r"\['(\w+)'\]", name.removeprefix(_ENCODER))
        if task in tasks:
            leaves.setdefault('/'.join((kind, *parts)), []).append(np.asarray(read[name]))
    if not leaves or any(name.startswith("['algorithm'].clients") for name in read):
        raise UserError(f'{path} has no encoder of tasks that clients train together')
    return {name: np.mean(arrays, axis=0) for name, arrays in leaves.items()}


def check(folder: Path, round_number: int, identity: Identity | None = None) -> str:
    """Explains why the checkpoint of a round is unusable.

    Args:
      folder: folder of the checkpoints.
      round_number: rounds completed.
      identity: the run that it must belong to; None accepts any.

    Returns:
      The reason, '' if the checkpoint is usable.
    """
    return _read(folder / str(round_number), None, identity)[2]


def remove_after(folder: Path, round_number: int) -> None:
    """Removes all checkpoints after a round, empty or not, and the remains of interrupted saves.

    A run that resumes from that round writes them again.
    """
    later = [folder / str(number) for number in _numbers(folder) if number > round_number]
    for path in (*later, *folder.glob(_CUT)):
        shutil.rmtree(path)


def installed_versions() -> dict[str, str]:
    """Returns the versions of this package and of those that it computes and saves with."""
    return {'semisfl_jax': semisfl_jax.__version__} | {name: importlib.metadata.version(name) for name in _PACKAGES}


def commit() -> str:
    """Returns the commit of this checkout, with '+' for uncommitted changes, or the installed version."""
    checkout = Path(semisfl_jax.__file__).parents[1]
    if (checkout / 'launch.py').is_file():
        git = ['git', '-C', str(checkout), 'describe', '--always', '--abbrev=12', '--exclude=*', '--dirty=+']
        with suppress(OSError, subprocess.SubprocessError):  # no git, or no repository
            return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return f'version {semisfl_jax.__version__}'


def _read(folder: Path, template: Any, identity: Identity | None) -> tuple[Any, dict[str, Any], str]:
    """Reads the state (None without `template`), description, and fault ('' for none) of the checkpoint `folder`."""
    wanted = {'round': int(folder.name), **(identity._asdict() if identity else {})}
    if template is not None:
        wanted['leaves'] = _shapes(_named(template))
    try:
        with _quiet():
            about = _load(folder / _ABOUT, ocp.JsonCheckpointHandler)
            for key, value in wanted.items():
                if about[key] != value:
                    return None, {}, f'it has {key}={shorten(about[key])}, not {shorten(value)}'
            read = _content(folder, about)
    except Exception as error:  # Orbax and tensorstore raise errors of many kinds here
        return None, {}, f'it cannot be read ({first_line(error)[:100]})'
    state = [read[name] if name in read else np.empty(np.shape(leaf), leaf.dtype) for name, leaf in _paths(template)]
    return jax.tree.unflatten(jax.tree.structure(template), state), about, ''


def _content(folder: Path, about: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint by name, and raises ValueError if they do not match its checksum."""
    shapes = {name: text.split(' ', 1) for name, text in about['leaves'].items()}
    abstract = {name: np.empty(json.loads(shape), kind) for name, (kind, shape) in shapes.items()}
    read = _load(folder / _STATE, ocp.StandardCheckpointHandler, args=ocp.args.StandardRestore(abstract))
    digest = _digest(read)
    if about.get('sha256', digest) != digest:  # checkpoints of earlier versions have none
        raise ValueError('its content does not have its checksum')
    return read


def _load(path: Path, handler: type, **options: Any) -> Any:
    """Reads one item of a checkpoint."""
    with _checkpointer(handler(multiprocessing_options=_ALONE)) as checkpointer:
        return checkpointer.restore(path.absolute(), **options)


def _both() -> ocp.CompositeCheckpointHandler:
    """Returns a handler that writes both items of a checkpoint."""
    handlers = {_STATE: ocp.StandardCheckpointHandler, _ABOUT: ocp.JsonCheckpointHandler}
    return ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=_ALONE),
        **{name: handler(multiprocessing_options=_ALONE) for name, handler in handlers.items()},
    )


def _checkpointer(handler: Any) -> ocp.Checkpointer:
    return ocp.Checkpointer(handler, multiprocessing_options=_ALONE)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax from printing a traceback from each of its threads when it fails within the block.

    Some come later, when the event loop that waited for them is closed: these stay silent after a failure.
    """
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
    """Lists all leaves with their paths."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _named(tree: Any) -> dict[str, Any]:
    """Returns the leaves by path, without empty arrays, which Orbax does not accept."""
    return {name: leaf for name, leaf in _paths(tree) if np.size(leaf)}


def _digest(leaves: Mapping[str, Any]) -> str:
    """Computes SHA-256 over the bytes of all leaves, in the order of their paths."""
    checksum = hashlib.sha256()
    for name in sorted(leaves):
        checksum.update(np.asarray(leaves[name]).tobytes())
    return checksum.hexdigest()


def _shapes(leaves: Mapping[str, Any]) -> dict[str, str]:
    """Describes the type and shape of each leaf: 'float32 [3, 4]'."""
    return {name: f'{np.dtype(leaf.dtype).name} {list(np.shape(leaf))}' for name, leaf in leaves.items()}
