"""Diagnostics as files: one .npz per round, without pickles, written atomically."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError

_NAME = 'round_{:06d}.npz'


def rounds_written(folder: Path) -> list[int]:
    """The rounds for which the workdir `folder` holds diagnostics, ascending."""
    names = (path.stem.removeprefix('round_') for path in (folder / 'diagnostics').glob('round_*.npz'))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def missing(folder: Path, rounds: int, every: int) -> list[int]:
    """The rounds, ascending, of which a run of `rounds` rounds with `diagnostics_every` writes diagnostics, but the
    workdir `folder` holds none."""
    return sorted({*range(every, rounds + 1, every), rounds} - set(rounds_written(folder)))


def save(folder: Path, round_number: int, arrays: dict[str, np.ndarray]) -> None:
    """Writes the diagnostics after `round_number` rounds into the workdir `folder`. Equal arrays give equal bytes."""
    path = _path(folder, round_number)
    path.parent.mkdir(exist_ok=True)
    written = io.BytesIO()
    np.savez_compressed(written, **arrays)  # type: ignore[arg-type]  # allow_pickle=False came with NumPy 2.2
    file_io.write(path, written.getvalue())


def load(folder: str | os.PathLike, round_number: int) -> dict[str, np.ndarray]:
    """Reads what `save` wrote into the workdir `folder` after `round_number` rounds.

    Raises:
      UserError: the file is missing or damaged.
    """
    path = _path(Path(folder).expanduser(), round_number)
    if path.exists() and not path.is_file():
        raise UserError(f'{path} is not a file; delete it')
    try:
        with path.open('rb') as file, np.load(file, allow_pickle=False) as entries:
            return {name: entries[name] for name in entries.files}
    except FileNotFoundError as error:
        raise UserError(f'there are no diagnostics {path}; run with --config.diagnostics_every=ROUNDS') from error
    except Exception as error:  # NumPy and zipfile raise a dozen types for a damaged file
        raise UserError(f'{path} cannot be read ({error}); delete it') from error


def cut_back(folder: Path, rounds: int) -> None:
    """Removes the diagnostics after round `rounds`; a run that resumes from there writes them again."""
    for number in rounds_written(folder):
        if number > rounds:
            _path(folder, number).unlink()


def _path(folder: Path, round_number: int) -> Path:
    return folder / 'diagnostics' / _NAME.format(round_number)
