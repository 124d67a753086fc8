"""Checkpoints, written atomically by Orbax, each with a description of its origin and contents.

The description is part of what Orbax commits, so a checkpoint never exists without it. It holds a checksum of every
array and one of itself: a restored checkpoint is exactly the one that was written, for this round of this run.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import logging
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import CheckpointManager

import semisfl_jax
from semisfl_jax.core import atomic_io
from semisfl_jax.core.errors import UserError, warn
from semisfl_jax.core.wording import first_line

FORMAT = 2  # 1: without a description
_STATE, _ABOUT = 'state', 'about'  # the items of a checkpoint
_STATE_OF_FORMAT_1 = 'default'
_SECONDS_FOR_OTHERS = 0.2  # for reads that run concurrently with a failed one to finish
_ALONE = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})  # without waiting for other processes


class Identity(NamedTuple):
    """The run that checkpoints belong to."""

    seed: int
    config_hash: str  # `config.identity_hash`
    partition_hash: str  # `Partition.content_hash`


class Restored(NamedTuple):
    """A checkpoint that was read back."""

    round: int  # rounds completed
    state: Any  # structured as the template, leaves on the host
    notes: Any  # as passed to `save`


def open_manager(folder: Path, max_to_keep: int) -> CheckpointManager:
    """A manager of the last `max_to_keep` checkpoints in `folder`, which is created. For process 0 only."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=max_to_keep, enable_async_checkpointing=False, create=False, multiprocessing_options=_ALONE
    )
    return CheckpointManager(folder.absolute(), options=options)


def rounds_saved(folder: Path) -> list[int]:
    """The rounds for which `folder` holds a checkpoint, oldest first. Other contents are ignored."""
    if not folder.is_dir():
        return []
    numbered = [path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir()]
    return sorted(int(path.name) for path in numbered if path.name[0] != '0' and any(path.iterdir()))


def save(
    manager: CheckpointManager, round_number: int, state: Any, identity: Identity, notes: Mapping[str, Any]
) -> None:
    """Saves the checkpoint after `round_number` rounds: a pytree of arrays and numbers, and notes for JSON.

    Raises:
      UserError: it cannot be written, most likely on a full disk. Earlier ones stay.
    """
    leaves = _named(jax.device_get(state))
    about = {
        'format': FORMAT,
        'round': round_number,
        **identity._asdict(),
        'versions': installed_versions(),
        'notes': notes,
        'leaves': {name: _digest(leaf) for name, leaf in leaves.items()},
    }
    items = {_STATE: ocp.args.StandardSave(leaves), _ABOUT: ocp.args.JsonSave(atomic_io.seal(about))}
    try:
        with _quietly():
            manager.save(round_number, args=ocp.args.Composite(**items))
    except (OSError, ValueError) as error:  # the latter from tensorstore
        full = 'RESOURCE_EXHAUSTED' in str(error) or getattr(error, 'errno', None) in (errno.ENOSPC, errno.EDQUOT)
        reason = 'no space left on the device' if full else first_line(error)[:100]
        raise UserError(
            f'the checkpoint of round {round_number} cannot be written to {manager.directory} ({reason}); make room '
            'there; the same command then resumes from the last one'
        ) from error


def restore(folder: Path, template: Any, identity: Identity) -> Restored | None:
    """The newest intact checkpoint of this run; None if there is none at all. See `restore_all`."""
    restored = restore_all([folder], template, [identity])
    return restored and Restored(restored.round, restored.state[0], restored.notes[0])


def restore_all(folders: Sequence[Path], template: Any, identities: Sequence[Identity]) -> Restored | None:
    """The newest round for which every folder holds a usable checkpoint; None if some folder has no checkpoint at all.

    A run of several trials saves them one after another, so a kill may leave the last ones a save behind. Checkpoints
    that are damaged, or of another round or run, are renamed to damaged-N so that the run can resume, with one warning
    on stderr for each. Another warning lists package versions that differ from those the checkpoint was made with.

    Args:
      folders: of the checkpoints of each trial.
      template: the state of one trial: a pytree with the structure, shapes and types of what was saved.
      identities: of each trial.

    Returns:
      The round, with `state` and `notes` as lists over trials.

    Raises:
      UserError: no round is in all folders, or no checkpoint is usable. Nothing is renamed in that case.
    """
    saved = [rounds_saved(folder) for folder in folders]
    if not all(saved):
        return None
    common = sorted(set.intersection(*map(set, saved)))
    if not common:
        rounds_by_folder = '; '.join(
            f'{folder}: {", ".join(map(str, rounds))}' for folder, rounds in zip(folders, saved, strict=True)
        )
        raise UserError(
            f'no round has a checkpoint of every trial ({rounds_by_folder}); resume each seed in a run of its own'
        )
    useless: list[tuple[Path, str]] = []
    for number in reversed(common):
        paths = [folder / str(number) for folder in folders]
        checkpoints = [_read(path, template, identity) for path, identity in zip(paths, identities, strict=True)]
        if not any(fault for *_, fault in checkpoints):
            for bad, why in useless:
                aside = atomic_io.set_aside(bad)
                warn(f'the checkpoint of round {bad.name} in {bad.parent} is renamed to {aside.name}: {why}')
            states, abouts, _ = zip(*checkpoints, strict=True)
            if differing := differing_versions(abouts[0]['versions']):
                warn(
                    f'the checkpoint of round {number} in {folders[0]} was made with {", ".join(differing)}; '
                    'later rounds may differ in their last digits from those of an uninterrupted run'
                )
            return Restored(number, list(states), [about['notes'] for about in abouts])
        useless += [(path, fault) for path, (*_, fault) in zip(paths, checkpoints, strict=True) if fault]
    faults = '; '.join(f'round {bad.name}: {why}' for bad, why in useless)
    where = ', '.join(dict.fromkeys(str(bad.parent) for bad, _ in useless))
    raise UserError(
        f'no checkpoint in {where} can be used ({faults}); restore one from a copy, or start in another --workdir'
    )


def read(folder: Path, round_number: int, template: Any, identity: Identity) -> Any:
    """The state of one checkpoint, for readers other than the run itself: nothing is modified, even on errors.

    Args:
      folder: of the checkpoints.
      round_number: one of `rounds_saved`.
      template: as in `restore_all`.
      identity: of the run.

    Raises:
      UserError: the checkpoint is damaged, or not of this round of this run.
    """
    state, _, fault = _read(folder / str(round_number), template, identity)
    if fault:
        raise UserError(f'the checkpoint of round {round_number} in {folder} cannot be used: {fault}')
    return state


def cut_back(folder: Path, round_number: int) -> None:
    """Removes the checkpoints after round `round_number`; a run that resumes from there writes them again."""
    for number in rounds_saved(folder):
        if number > round_number:
            shutil.rmtree(folder / str(number))


def _read(folder: Path, template: Any, identity: Identity) -> tuple[Any, dict[str, Any], str]:
    """State and description of the checkpoint `folder`, and why it is unusable, '' if it is usable."""
    if (folder / _STATE_OF_FORMAT_1).is_dir() and not (folder / _ABOUT).exists():
        return None, {}, 'it was written by an earlier version of this package, and this version cannot resume from it'
    if any(not path.is_file() and not path.is_dir() for path in folder.rglob('*')):  # a pipe: reading it might hang
        return None, {}, 'it holds something that is neither a file nor a folder'
    try:
        with _checkpointer(ocp.JsonCheckpointHandler) as checkpointer:
            about = checkpointer.restore(folder.absolute() / _ABOUT)
    except (OSError, ValueError, RecursionError):  # missing, a folder, not UTF-8, not JSON
        about = None
    if not atomic_io.is_sealed(about):
        return None, {}, 'its description is damaged'
    template_leaves = _named(template)
    if fault := _foreign(about, int(folder.name), identity, template_leaves):
        return None, {}, fault
    try:
        with _quietly(), _checkpointer(ocp.StandardCheckpointHandler) as checkpointer:
            abstract = {name: _abstract(leaf) for name, leaf in template_leaves.items()}
            leaves = checkpointer.restore(folder.absolute() / _STATE, args=ocp.args.StandardRestore(abstract))
    except Exception as error:  # Orbax and tensorstore raise errors of many kinds here
        return None, {}, f'its arrays cannot be read ({first_line(error)[:100]})'
    for name, leaf in leaves.items():
        if _digest(leaf) != about['leaves'][name]:
            return None, {}, f'{name} is not as it was written'
        if leaf.shape != np.shape(template_leaves[name]):
            return None, {}, f'{name} has shape {leaf.shape} instead of {np.shape(template_leaves[name])}'
    restored_leaves = [leaves[name] if name in leaves else _abstract(leaf) for name, leaf in _paths(template)]
    return jax.tree.unflatten(jax.tree.structure(template), restored_leaves), about, ''


def _foreign(about: dict[str, Any], number: int, identity: Identity, template_leaves: dict[str, Any]) -> str:
    """Why an intact checkpoint is not the one wanted, '' if it is."""
    if about['format'] != FORMAT:
        return f'it was written by another version of this package (format {about["format"]}, this one reads {FORMAT})'
    if about['round'] != number:
        return f'it is a checkpoint of round {about["round"]}'
    if about['seed'] != identity.seed:
        return f'it comes from a run of seed {about["seed"]}'
    if about['config_hash'] != identity.config_hash:
        return 'it comes from a run of another configuration'
    if about['partition_hash'] != identity.partition_hash:
        return 'it comes from a run on other data, or on another split of the data'
    if about['leaves'].keys() != template_leaves.keys():
        return 'its arrays are not those of this version of the method'
    return ''


def _checkpointer(handler: type) -> ocp.Checkpointer:
    return ocp.Checkpointer(handler(multiprocessing_options=_ALONE), multiprocessing_options=_ALONE)


@contextmanager
def _quietly() -> Iterator[None]:
    """Context for reading and writing arrays. When one fails, Orbax logs a traceback from each of its threads, and
    closes its event loop while others are still in progress, each of which would print another one on completion."""
    previous_hook, logger = sys.unraisablehook, logging.getLogger('absl')
    previous_level = logger.level

    def hook(unraisable: Any) -> None:
        if 'Event loop is closed' not in str(unraisable.exc_value):
            previous_hook(unraisable)

    sys.unraisablehook = hook
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except Exception:
        time.sleep(_SECONDS_FOR_OTHERS)
        raise
    finally:
        sys.unraisablehook = previous_hook
        logger.setLevel(previous_level)


def _paths(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by path, without empty arrays, which Orbax does not accept."""
    return {name: leaf for name, leaf in _paths(tree) if np.size(leaf)}


def _abstract(leaf: Any) -> np.ndarray:
    """An array of the leaf's shape and type; for an empty leaf, the leaf itself."""
    return np.empty(np.shape(leaf), leaf.dtype)


def _digest(leaf: Any) -> str:
    """SHA-256 over type, shape and bytes of an array."""
    array = np.asarray(leaf)
    digest = hashlib.sha256(f'{array.dtype.name} {array.shape} '.encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# Package versions that the numbers of a run may depend on.

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def installed_versions() -> dict[str, str]:
    """Versions of this package and of those that it computes and saves with."""
    return {
        'semisfl_jax': semisfl_jax.__version__,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def differing_versions(recorded: dict[str, str]) -> list[str]:
    """Packages whose installed version differs from `recorded`: 'jax 0.9 (now 0.10)'."""
    current = installed_versions()
    return [
        f'{name} {recorded.get(name, "unknown")} (now {current.get(name, "unknown")})'
        for name in sorted(current.keys() | recorded.keys())
        if current.get(name) != recorded.get(name)
    ]
