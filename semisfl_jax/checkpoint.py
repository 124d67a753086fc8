"""Checkpoints: Orbax writes them in one step, a digest beside each tells a damaged one."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import CheckpointManager

from semisfl_jax.errors import UserError

_DIGEST = 'SHA256'
_ALONE = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})  # others are not waited for


class Restored(NamedTuple):
    """A checkpoint that was read back."""

    round: int  # rounds behind it
    state: Any  # as the template, leaves on the host


def open_manager(folder: Path, kept: int) -> CheckpointManager:
    """The keeper of the last `kept` checkpoints in `folder`, which it creates. Of several processes, for the first."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=kept, enable_async_checkpointing=False, create=False, multiprocessing_options=_ALONE
    )
    return CheckpointManager(folder.absolute(), options=options)


def rounds_saved(folder: Path) -> list[int]:
    """The rounds of which `folder` holds a checkpoint, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def save(manager: CheckpointManager, round_number: int, state: Any) -> None:
    """Saves a pytree of arrays and numbers as the checkpoint after `round_number` rounds."""
    manager.save(round_number, args=ocp.args.StandardSave(_named(jax.device_get(state))))
    folder = Path(manager.directory) / str(round_number)
    temporary = folder / f'{_DIGEST}.tmp'
    temporary.write_text(_digest(folder))
    temporary.replace(folder / _DIGEST)


def restore(folder: Path, template: Any) -> Restored | None:
    """The newest checkpoint that is whole; None where there is none at all.

    Damaged ones are renamed to damaged-N, out of the way of the run that goes on, with a line on stderr.

    Args:
      folder: of the checkpoints.
      template: pytree with the structure, shapes and types of what was saved.

    Raises:
      UserError: there are checkpoints, and all are damaged. Nothing is renamed then.
    """
    restored = restore_all([folder], template)
    return restored and Restored(restored.round, restored.state[0])


def restore_all(folders: Sequence[Path], template: Any) -> Restored | None:
    """The newest round of which each of several folders holds a whole checkpoint; None where a folder has none at all.

    A run of several trials saves one after another, so a kill may leave the last of them a save behind.

    Args:
      folders: of the checkpoints of each trial.
      template: of the state of one trial.

    Returns:
      The round, and as `state` the list of the trials' states.

    Raises:
      UserError: no round is in all folders, or what is there is damaged. Nothing is renamed then.
    """
    saved = [rounds_saved(folder) for folder in folders]
    if not all(saved):
        return None
    common = sorted(set.intersection(*map(set, saved)))
    if not common:
        found = '; '.join(f'{folder}: {", ".join(map(str, own))}' for folder, own in zip(folders, saved, strict=True))
        raise UserError(f'no round has a checkpoint of every trial ({found}); let each go on alone, by its own seed')
    damaged: list[tuple[Path, str]] = []
    for number in reversed(common):
        paths = [folder / str(number) for folder in folders]
        states, faults = zip(*(_read(path, template) for path in paths), strict=True)
        if not any(faults):
            for bad, why in damaged:
                _set_aside(bad)
                print(
                    f'warning: the checkpoint of round {bad.name} is damaged ({why}) in {bad.parent}',
                    file=sys.stderr,
                    flush=True,
                )
            return Restored(number, list(states))
        damaged += [(path, fault) for path, fault in zip(paths, faults, strict=True) if fault]
    faults = '; '.join(f'round {bad.name}: {why}' for bad, why in damaged)
    where = ', '.join(dict.fromkeys(str(bad.parent) for bad, _ in damaged))
    raise UserError(
        f'no checkpoint in {where} can be read ({faults}); restore one from a copy, or start in another --workdir'
    )


def read(folder: Path, round_number: int, template: Any) -> Any:
    """The checkpoint of one round, for a reader that is not the run: whatever is wrong, all is left as it is.

    Args:
      folder: of the checkpoints.
      round_number: one of `rounds_saved`.
      template: as in `restore`.

    Raises:
      UserError: it is damaged, or of another model.
    """
    state, fault = _read(folder / str(round_number), template)
    if fault:
        raise UserError(f'the checkpoint of round {round_number} in {folder} cannot be read: {fault}')
    return state


def cut_back(folder: Path, round_number: int) -> None:
    """Removes the checkpoints after round `round_number`: a run that goes on from there writes them again."""
    for number in rounds_saved(folder):
        if number > round_number:
            shutil.rmtree(folder / str(number))


def _read(folder: Path, template: Any) -> tuple[Any, str]:
    """The state in `folder`, or what is wrong with it."""
    digest = folder / _DIGEST
    if digest.exists() and digest.read_text() != _digest(folder):  # absent: killed right after the save
        return None, 'its files have changed since they were written'
    named = _named(template)
    try:
        with ocp.StandardCheckpointer(multiprocessing_options=_ALONE) as checkpointer:
            leaves = checkpointer.restore(folder.absolute() / 'default', {k: _abstract(v) for k, v in named.items()})
    except Exception as error:  # Orbax and tensorstore raise errors of many kinds here
        return None, str(error).split('\n')[0][:200]
    for name, leaf in named.items():
        if leaves[name].shape != np.shape(leaf):
            return None, f'{name} has shape {leaves[name].shape} instead of {np.shape(leaf)}'
    restored = [leaves[name] if name in leaves else _abstract(leaf) for name, leaf in _paths(template)]
    return jax.tree.unflatten(jax.tree.structure(template), restored), ''


def _paths(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by their path. Orbax takes no empty arrays, and they hold nothing, so they are left out."""
    return {name: leaf for name, leaf in _paths(tree) if np.size(leaf)}


def _abstract(leaf: Any) -> np.ndarray:
    """An array of the leaf's shape and type; for an empty leaf, the leaf itself."""
    return np.empty(np.shape(leaf), leaf.dtype)


def _digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob('*') if path.is_file() and path.stem != _DIGEST):
        digest.update(path.relative_to(folder).as_posix().encode() + b'\0')
        with path.open('rb') as file:
            digest.update(hashlib.file_digest(file, 'sha256').digest())
    return digest.hexdigest()


def _set_aside(folder: Path) -> None:
    count = 0
    while (target := folder.with_name(f'damaged-{folder.name}' + (f'-{count}' if count else ''))).exists():
        count += 1
    folder.rename(target)
