"""metrics.jsonl, summary.json and TensorBoard events: what a run writes down."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

from semisfl_jax.errors import UserError

GIB = 2**30  # bytes: the unit of traffic in figures and tables, and what the paper calls GB
COSTS = ('bytes_up', 'bytes_down', 'simulated_seconds')  # of all rounds so far
TIMES = ('wall_seconds', 'images_per_second')  # the only values that differ between two runs of one experiment


def plain(value) -> Any:
    """A JSON value: float32 by its shortest digits, NaN (not applicable) and infinities as null."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    number = np.asarray(value)[()]
    if np.issubdtype(number.dtype, np.integer):
        return int(number)
    number = float(str(number.astype(np.float32))) if number.dtype != np.float64 else float(number)
    return number if math.isfinite(number) else None


def write_json(path: Path, value: Any) -> None:
    """Writes `value` in one step: a reader, or a killed run, sees the old file or the new one."""
    _replace(path, json.dumps(value, indent=2) + '\n')


def append(path: Path, record: dict[str, Any]) -> None:
    """Adds one line to metrics.jsonl."""
    with path.open('a') as file:
        file.write(json.dumps(record) + '\n')


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl. A last line cut short by a kill is left out."""
    if not path.exists():
        return []
    *lines, _ = path.read_text().split('\n')
    return [json.loads(line) for line in lines]


def check_rounds(path: Path, rounds: int) -> None:
    """Makes sure that metrics.jsonl holds the rounds 1 .. `rounds`, and maybe more.

    Raises:
      UserError: it does not.
    """
    try:
        seen = [record['round'] for record in read(path)]
    except (ValueError, TypeError, KeyError):
        seen = []
    if seen[:rounds] != list(range(1, rounds + 1)):
        raise UserError(
            f'{path} does not hold the rounds 1 to {rounds} that the checkpoint has behind it; '
            'restore the file, or start again in another --workdir'
        )


def cut_back(path: Path, rounds: int) -> None:
    """Cuts metrics.jsonl to its first `rounds` lines."""
    text = path.read_text() if path.exists() else ''
    kept = ''.join(text.splitlines(keepends=True)[:rounds])
    if kept != text:
        _replace(path, kept)


def summarize(records: list[dict[str, Any]], headline: str) -> dict[str, Any]:
    """The figures of summary.json that follow from metrics.jsonl.

    `headline` is the model a method is judged by, one of `types.MODELS`; accuracies are shares in [0, 1];
    `wall_seconds` adds up the rounds, without compilation, evaluation and saving.
    """
    key = f'{headline}_accuracy'
    accuracy = [record[key] for record in records if key in record]
    return {
        'headline': headline,
        'final_accuracy': accuracy[-1],
        'mean_of_last_10_evaluations': float(np.mean(accuracy[-10:])),
        'best_accuracy': max(accuracy),
        'evaluations': len(accuracy),
        'rounds': len(records),
        'k_s': records[-1]['k_s'],
        **{name: records[-1][name] for name in COSTS if name in records[-1]},
        'wall_seconds': round(sum(record['wall_seconds'] for record in records), 3),
    }


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and standard error of the mean (NaN for a single value)."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


def open_events(folder: Path, first_round: int) -> SummaryWriter:
    """A TensorBoard writer; what an interrupted run wrote of `first_round` and later is hidden."""
    return SummaryWriter(str(folder), purge_step=first_round, flush_secs=10)


def log_events(events: SummaryWriter, record: dict[str, Any]) -> None:
    """One line of metrics.jsonl as scalars. Those of made-up data are grouped under FAKE."""
    group = 'FAKE/' if record.get('fake') else ''
    for key, value in record.items():
        if key not in ('round', 'fake') and value is not None:
            events.add_scalar(group + key, value, record['round'])


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + '.tmp')
    with temporary.open('w') as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
