"""Validation scores of the runs of trials, finished or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from semisfl_jax import runs, tasks
from semisfl_jax.studies.collect import LAST
from semisfl_jax.tasks import Score
from semisfl_jax.training import metrics

STOPS = 4  # a trial can be stopped after a quarter, half and three quarters of its rounds


class Judge(NamedTuple):
    """The number by which the trials of a method are judged."""

    key: str  # in metrics.jsonl
    score: Score


def judge(key: str) -> Judge:
    """By its key in metrics.jsonl."""
    headline = tasks.split_key(key)
    assert headline is not None, key  # one that `key_of` returned
    return Judge(key, headline.score)


def key_of(folder: Path) -> str:
    """The key by which the finished run in a folder is judged.

    Raises:
      UserError: there is no finished run.
    """
    return runs.read(runs.trials(folder)[0]).key


def curve(folder: Path, seeds: Sequence[int], key: str) -> dict[int, float]:
    """Round -> score up to there: the mean over seeds of the means over the last ten evaluations. Only rounds that have
    been evaluated in the runs of all seeds.

    Raises:
      UserError: a metrics.jsonl that no run wrote.
    """
    curves = [_running(metrics.read(home / 'metrics.jsonl'), key) for home in _folders(folder, seeds)]
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {number: sum(curve[number] for curve in curves) / len(curves) for number in shared}


def stops(rounds: int, evaluated: int) -> list[int]:
    """The rounds, of `rounds` in all, after which a trial can be stopped: with an evaluation every `evaluated` rounds,
    the first ones from a quarter, half and three quarters on."""
    wanted = [-(-rounds * part // STOPS) for part in range(1, STOPS)]
    found = [-(-number // evaluated) * evaluated for number in wanted]
    return sorted({number for number in found if number < rounds})


def _folders(folder: Path, seeds: Sequence[int]) -> list[Path]:
    return [folder / f'seed_{seed}' for seed in seeds] if len(seeds) > 1 else [folder]


def _running(records: Sequence[dict[str, Any]], key: str) -> dict[int, float]:
    values: list[float] = []
    means = {}
    for record in records:
        if record.get(key) is not None:
            values.append(record[key])
            last = values[-LAST:]
            means[record['round']] = sum(last) / len(last)
    return means
