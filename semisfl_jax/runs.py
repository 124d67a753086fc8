"""Finished runs as comparisons and plots need them: read from their folders, grouped by what tells them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax import config as config_lib
from semisfl_jax import metrics
from semisfl_jax.errors import UserError


class Run(NamedTuple):
    """One finished run of one seed."""

    folder: Path
    settings: dict[str, Any]  # flat configuration without what changes no number, and without the seed
    seed: int
    headline: str  # what it is judged by, one of `types.MODELS`
    records: list[dict[str, Any]]  # the lines of metrics.jsonl


def trials(folder: Path) -> list[Path]:
    """The folders of single runs that `folder` stands for: those of its seeds, or itself."""
    return sorted(folder.glob('seed_*')) or [folder]


def read(folder: Path) -> Run:
    """Reads a finished run of one seed.

    Raises:
      UserError: `folder` holds no finished run.
    """
    try:
        config = config_lib.flatten(json.loads((folder / 'config.json').read_text()))
        summary = json.loads((folder / 'summary.json').read_text())
    except (OSError, ValueError) as error:
        raise UserError(f'{folder} holds no finished run ({error}); give folders that have a summary.json') from error
    try:
        records = metrics.read(folder / 'metrics.jsonl')
    except ValueError as error:
        raise UserError(f'{folder / "metrics.jsonl"} cannot be read ({error})') from error
    settings = {key: value for key, value in config.items() if key not in config_lib.INERT | {'seed'}}
    return Run(folder, {**settings, 'rounds': summary['rounds']}, config['seed'], summary['headline'], records)


def group(runs: Sequence[Run]) -> tuple[dict[str, dict[int, Run]], list[str]]:
    """Groups of runs by what tells them apart.

    Args:
      runs: at least one, anything with the `settings` and the `seed` of a Run.

    Returns:
      {label: {seed: run}} in order of first appearance, and the keys that only some runs know, because they are of
      different versions; those are not compared.

    Raises:
      UserError: two runs of a group have the same seed.
    """
    known = set.intersection(*(set(run.settings) for run in runs))
    varying = [key for key in sorted(known) if len({json.dumps(run.settings[key]) for run in runs}) > 1]
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        label = ', '.join(f'{key}={run.settings[key]}' for key in varying) or run.settings['algorithm']
        if run.seed in groups.setdefault(label, {}):
            raise UserError(f'two runs of seed {run.seed} with {label}: give each run once')
        groups[label][run.seed] = run
    return groups, sorted(set().union(*(run.settings for run in runs)) - known)
