"""Writes and reads metrics.jsonl, the records of a run's rounds."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semisfl_jax import tasks
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError

GIB = 2**30  # bytes: the unit of traffic in figures and tables, called GB in the paper
COSTS = ('bytes_up', 'bytes_down', 'simulated_seconds')  # of all rounds so far
TIMES = ('wall_seconds', 'images_per_second')  # the only values that differ between two runs of one experiment


def plain(value: Any) -> Any:
    """A JSON value: float32 by its shortest digits, NaN (not applicable) and infinities as null."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    number = np.asarray(value)[()]
    if np.issubdtype(number.dtype, np.integer):
        return int(number)
    shortest = float(str(number.astype(np.float32))) if number.dtype != np.float64 else float(number)
    return shortest if math.isfinite(shortest) else None


def line(record: Mapping[str, Any]) -> str:
    """A line of metrics.jsonl."""
    return json.dumps(record) + '\n'


def append(path: Path, record: dict[str, Any]) -> None:
    """Adds one line to metrics.jsonl."""
    with path.open('a') as file:
        file.write(line(record))


def chain(previous: str, text: bytes) -> str:
    """The running checksum of metrics.jsonl after one more line: SHA-256 over the previous checksum and its bytes."""
    return hashlib.sha256(previous.encode() + text).hexdigest()


def fault(path: Path, rounds: int, expected: str) -> str:
    """Why the first `rounds` lines of metrics.jsonl do not match the checksum `expected`, '' if they do.

    Raises:
      UserError: no such file.
    """
    lines = file_io.read(path).split(b'\n')[:rounds]
    if functools.reduce(chain, (text + b'\n' for text in lines), '') == expected:
        return ''
    return f'{path} was modified after the run wrote it: its lines up to round {rounds} have changed'


def read(path: Path, rounds: int | None = None) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl; a last line truncated by a kill is skipped. Empty if there is no file.

    Args:
      path: of the file.
      rounds: how many of its lines are read; None for all.

    Raises:
      UserError: it is not a regular file, or a line is not one that a run writes.
    """
    return [_record(text, f'{path}, line {number},') for number, text in enumerate(_lines(path)[:rounds], start=1)]


def _lines(path: Path) -> list[bytes]:
    return file_io.read(path).split(b'\n')[:-1] if os.path.lexists(path) else []


def _record(text: bytes, location: str) -> dict[str, Any]:
    record = file_io.parse_json(text, location)
    if not isinstance(record, dict) or type(record.get('round')) is not int:
        raise UserError(f'{location} is not a line that a run writes: it has no round')
    for key, value in record.items():
        judged = tasks.split_key(key)
        others: tuple[Any, ...] = (None, True, False)  # besides numbers
        if judged:  # an accuracy is defined for any images, a score of a dense task not
            others = () if judged.score.name == tasks.ACCURACY.name else (None,)
        if not file_io.is_number(value) and value not in others:
            raise UserError(f'{location} is not a line that a run writes: its {key} is not a number')
    return record


def as_arrays(records: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """T lines of metrics.jsonl -> {name: [T]}: integers where every line has one, else float64, NaN for none."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: _as_array([record.get(name) for record in records]) for name in names}


def stack(trials: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """R times {name: [T]} -> {name: [R, T]}."""
    return {name: np.stack([arrays[name] for arrays in trials]) for name in trials[0]}


def _as_array(values: Sequence[Any]) -> np.ndarray:
    if None in values:
        return np.array([math.nan if value is None else value for value in values], np.float64)
    return np.array(values)


def check_rounds(path: Path, rounds: int) -> None:
    """Makes sure that metrics.jsonl holds rounds 1 .. `rounds`, and possibly later ones, which a run may rewrite.

    Raises:
      UserError: it does not, or was not written by a run.
    """
    advice = 'restore the file, or start again in another --workdir'
    lines = _lines(path)[: max(rounds, 1)]
    try:
        round_numbers = [_record(text, f'line {number}')['round'] for number, text in enumerate(lines, start=1)]
    except UserError as error:
        raise UserError(f'{path}, rounds 1 to {max(rounds, 1)}: {error}; {advice}') from error
    if rounds and round_numbers != list(range(1, rounds + 1)):
        raise UserError(f'{path} does not have the rounds 1 to {rounds} that the checkpoint includes; {advice}')


def cut_back(path: Path, rounds: int) -> None:
    """Truncates metrics.jsonl to its first `rounds` lines."""
    content = b''.join(text + b'\n' for text in _lines(path)[:rounds])
    if os.path.lexists(path) and content != file_io.read(path):
        file_io.write(path, content)
