"""Checkpoints: Orbax writes them in one step, each with a description that says what it is and what is in it.

The description is part of what Orbax commits, so no moment leaves a checkpoint without it. It holds a checksum of every
array and one of itself: a checkpoint that comes back is the one that was written, of this round of this run.
"""

from __future__ import annotations

import hashlib
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

from semisfl_jax import own_files
from semisfl_jax.errors import UserError, warn
from semisfl_jax.training import versions

FORMAT = 2  # 1: without a description
_STATE, _ABOUT = 'state', 'about'  # the items of a checkpoint
_STATE_OF_FORMAT_1 = 'default'
_SECONDS_FOR_OTHERS = 0.2  # until reads that were begun beside one that failed have ended
_ALONE = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})  # others are not waited for


class Identity(NamedTuple):
    """Whose checkpoints they are."""

    seed: int
    config_hash: str  # `config.identity_hash`
    partition_hash: str  # of who holds what


class Restored(NamedTuple):
    """A checkpoint that was read back."""

    round: int  # rounds behind it
    state: Any  # as the template, leaves on the host
    notes: Any  # as they were given to `save`


def open_manager(folder: Path, kept: int) -> CheckpointManager:
    """The keeper of the last `kept` checkpoints in `folder`, which it creates. Of several processes, for the first."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=kept, enable_async_checkpointing=False, create=False, multiprocessing_options=_ALONE
    )
    return CheckpointManager(folder.absolute(), options=options)


def rounds_saved(folder: Path) -> list[int]:
    """The rounds of which `folder` holds a checkpoint, oldest first. Whatever else lies there is not looked at."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir()]
    return sorted(int(name) for name in names if name[0] != '0')


def save(
    manager: CheckpointManager, round_number: int, state: Any, identity: Identity, notes: Mapping[str, Any]
) -> None:
    """Saves the checkpoint after `round_number` rounds: a pytree of arrays and numbers, and notes for JSON."""
    named = _named(jax.device_get(state))
    about = {
        'format': FORMAT,
        'round': round_number,
        **identity._asdict(),
        'versions': versions.installed(),
        'notes': notes,
        'leaves': {name: _digest(leaf) for name, leaf in named.items()},
    }
    items = {_STATE: ocp.args.StandardSave(named), _ABOUT: ocp.args.JsonSave(own_files.seal(about))}
    manager.save(round_number, args=ocp.args.Composite(**items))


def restore(folder: Path, template: Any, identity: Identity) -> Restored | None:
    """The newest checkpoint that is whole and this run's; None where there is none at all. As `restore_all`."""
    restored = restore_all([folder], template, [identity])
    return restored and Restored(restored.round, restored.state[0], restored.notes[0])


def restore_all(folders: Sequence[Path], template: Any, identities: Sequence[Identity]) -> Restored | None:
    """The newest round of which each of several folders holds a checkpoint that can be used; None where a folder has
    none at all.

    A run of several trials saves one after another, so a kill may leave the last of them a save behind. Checkpoints
    that are damaged, or of another round or run, are renamed to damaged-N, out of the way of the run that goes on, with
    a line on stderr each. Another one says with which other versions of packages it was made, if it was.

    Args:
      folders: of the checkpoints of each trial.
      template: of the state of one trial: a pytree with the structure, shapes and types of what was saved.
      identities: of each trial.

    Returns:
      The round, and as `state` and `notes` the lists of the trials'.

    Raises:
      UserError: no round is in all folders, or nothing that is there can be used. Nothing is renamed then.
    """
    saved = [rounds_saved(folder) for folder in folders]
    if not all(saved):
        return None
    common = sorted(set.intersection(*map(set, saved)))
    if not common:
        found = '; '.join(f'{folder}: {", ".join(map(str, own))}' for folder, own in zip(folders, saved, strict=True))
        raise UserError(f'no round has a checkpoint of every trial ({found}); let each go on alone, by its own seed')
    useless: list[tuple[Path, str]] = []
    for number in reversed(common):
        paths = [folder / str(number) for folder in folders]
        found = [_read(path, template, own) for path, own in zip(paths, identities, strict=True)]
        if not any(fault for *_, fault in found):
            for bad, why in useless:
                aside = own_files.set_aside(bad)
                warn(f'the checkpoint of round {bad.name} in {bad.parent} is set aside as {aside.name}: {why}')
            states, abouts, _ = zip(*found, strict=True)
            if others := versions.differing(abouts[0]['versions']):
                warn(
                    f'the checkpoint of round {number} in {folders[0]} was made with {", ".join(others)}; '
                    'the rounds from here on may differ in their last digits from those of an undisturbed run'
                )
            return Restored(number, list(states), [about['notes'] for about in abouts])
        useless += [(path, fault) for path, (*_, fault) in zip(paths, found, strict=True) if fault]
    faults = '; '.join(f'round {bad.name}: {why}' for bad, why in useless)
    where = ', '.join(dict.fromkeys(str(bad.parent) for bad, _ in useless))
    raise UserError(
        f'no checkpoint in {where} can be used ({faults}); restore one from a copy, or start in another --workdir'
    )


def read(folder: Path, round_number: int, template: Any, identity: Identity) -> Any:
    """The state of one checkpoint, for a reader that is not the run: whatever is wrong, all is left as it is.

    Args:
      folder: of the checkpoints.
      round_number: one of `rounds_saved`.
      template: as in `restore_all`.
      identity: of the run.

    Raises:
      UserError: it is damaged, or not of this round of this run.
    """
    state, _, fault = _read(folder / str(round_number), template, identity)
    if fault:
        raise UserError(f'the checkpoint of round {round_number} in {folder} cannot be used: {fault}')
    return state


def cut_back(folder: Path, round_number: int) -> None:
    """Removes the checkpoints after round `round_number`: a run that goes on from there writes them again."""
    for number in rounds_saved(folder):
        if number > round_number:
            shutil.rmtree(folder / str(number))


def _read(folder: Path, template: Any, identity: Identity) -> tuple[Any, dict[str, Any], str]:
    """State and description of the checkpoint `folder`, and why it cannot be used, '' if it can."""
    if (folder / _STATE_OF_FORMAT_1).is_dir() and not (folder / _ABOUT).exists():
        return None, {}, 'an earlier version of this package wrote it, which this one cannot go on from'
    if any(not path.is_file() and not path.is_dir() for path in folder.rglob('*')):  # a pipe: reading it might hang
        return None, {}, 'it holds something that is neither a file nor a folder'
    try:
        with _checkpointer(ocp.JsonCheckpointHandler) as checkpointer:
            about = checkpointer.restore(folder.absolute() / _ABOUT)
    except (OSError, ValueError, RecursionError):  # not there, a folder, not UTF-8, not JSON
        about = None
    if not own_files.is_sealed(about):
        return None, {}, 'its description is damaged'
    named = _named(template)
    if fault := _foreign(about, int(folder.name), identity, named):
        return None, {}, fault
    try:
        with _quietly(), _checkpointer(ocp.StandardCheckpointHandler) as checkpointer:
            abstract = {name: _abstract(leaf) for name, leaf in named.items()}
            leaves = checkpointer.restore(folder.absolute() / _STATE, args=ocp.args.StandardRestore(abstract))
    except Exception as error:  # Orbax and tensorstore raise errors of many kinds here
        return None, {}, f'its arrays cannot be read ({str(error).splitlines()[0][:100]})'
    for name, leaf in leaves.items():
        if _digest(leaf) != about['leaves'][name]:
            return None, {}, f'{name} is not as it was written'
        if leaf.shape != np.shape(named[name]):
            return None, {}, f'{name} has shape {leaf.shape} instead of {np.shape(named[name])}'
    restored = [leaves[name] if name in leaves else _abstract(leaf) for name, leaf in _paths(template)]
    return jax.tree.unflatten(jax.tree.structure(template), restored), about, ''


def _foreign(about: dict[str, Any], number: int, identity: Identity, named: dict[str, Any]) -> str:
    """Why a whole checkpoint is not the one that is looked for, '' if it is."""
    if about['format'] != FORMAT:
        return f'another version of this package wrote it (format {about["format"]}, this one reads {FORMAT})'
    if about['round'] != number:
        return f'it is of round {about["round"]}'
    if about['seed'] != identity.seed:
        return f'it comes from a run of seed {about["seed"]}'
    if about['config_hash'] != identity.config_hash:
        return 'it comes from a run of another configuration'
    if about['partition_hash'] != identity.partition_hash:
        return 'it comes from a run on other data, or on another split of them'
    if about['leaves'].keys() != named.keys():
        return 'it holds other arrays than this version of the method'
    return ''


def _checkpointer(handler: type) -> ocp.Checkpointer:
    return ocp.Checkpointer(handler(multiprocessing_options=_ALONE), multiprocessing_options=_ALONE)


@contextmanager
def _quietly() -> Iterator[None]:
    """A block that reads arrays. Where one cannot be read, Orbax closes its event loop while others are still being
    read, and each of them would print a traceback when it is done."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if 'Event loop is closed' not in str(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    except Exception:
        time.sleep(_SECONDS_FOR_OTHERS)
        raise
    finally:
        sys.unraisablehook = before


def _paths(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by their path. Orbax takes no empty arrays, and they hold nothing, so they are left out."""
    return {name: leaf for name, leaf in _paths(tree) if np.size(leaf)}


def _abstract(leaf: Any) -> np.ndarray:
    """An array of the leaf's shape and type; for an empty leaf, the leaf itself."""
    return np.empty(np.shape(leaf), leaf.dtype)


def _digest(leaf: Any) -> str:
    """SHA-256 over type, shape and bytes of an array."""
    array = np.asarray(leaf)
    digest = hashlib.sha256(f'{array.dtype.name} {array.shape} '.encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()
