"""The machine and commit that a run was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import semisfl_jax
from semisfl_jax import runs
from semisfl_jax.core import file_io, machine
from semisfl_jax.studies import collect


def here() -> dict[str, str]:
    """This machine, and the commit of the checkout that contains this package; '+' marks uncommitted changes. For a
    package installed without its repository, its version."""
    checkout = Path(semisfl_jax.__file__).parents[1]
    version = f'version {semisfl_jax.__version__}'
    if (checkout / 'launch.py').is_file() and (commit := _git(checkout, 'rev-parse', '--short=12', 'HEAD')):
        version = f'{commit}{"+" if _git(checkout, "status", "--porcelain", "--untracked-files=no") else ""}'
    cores = machine.cores()
    return {'commit': version, 'machine': f'{machine.processor()}, {cores} core{"s" if cores > 1 else ""}'}


def note(folder: Path, entry: dict[str, str]) -> None:
    """Adds `entry` to those of the run in `folder`, unless present; before its first round, replaces them.

    Raises:
      UserError: provenance.json has invalid content.
    """
    begun = any((trial / 'metrics.jsonl').exists() for trial in runs.trials(folder))
    entries = collect.provenance(folder) if begun else []
    if entry not in entries:
        folder.mkdir(parents=True, exist_ok=True)
        file_io.write_json(folder / collect.PROVENANCE, [*entries, entry])


def _git(repository: Path, *words: str) -> str:
    try:
        done = subprocess.run(['git', '-C', str(repository), *words], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return done.stdout.strip() if done.returncode == 0 else ''
