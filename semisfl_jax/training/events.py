"""What a run reports while it trains. A listener is a function of these events; `console` is the command's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from semisfl_jax.core.frequency import FrequencyState
from semisfl_jax.tasks import Headline
from semisfl_jax.training.totals import RunTotals


class Described(NamedTuple):
    """The experiment was built."""

    lines: list[str]  # about algorithm, data, split, model and device
    folder: Path | None  # of the outputs


class Resumed(NamedTuple):
    """A checkpoint was restored."""

    round: int  # rounds completed


class Compiling(NamedTuple):
    """A program is about to be compiled."""

    program: str  # 'round' | 'evaluation'


class Compiled(NamedTuple):
    """It was compiled."""

    program: str
    seconds: float
    cached: bool  # found in the compilation cache


class Started(NamedTuple):
    """The loop over rounds begins."""

    round: int  # rounds completed
    rounds: int  # in total
    headline: Headline  # the number by which the method is judged


class RoundDone(NamedTuple):
    """A round was computed, and evaluated if it was its turn."""

    records: list[dict[str, Any]]  # [R], for every trial its line of metrics.jsonl


class Diagnosed(NamedTuple):
    """The diagnostic arrays of a round were computed (`diagnostics`)."""

    round: int  # rounds completed
    arrays: list[dict[str, np.ndarray]]  # [R]


class Snapshot(NamedTuple):
    """The state was checked and is to be saved."""

    round: int  # rounds completed
    states: list[Any]  # [R], on the devices
    controllers: list[FrequencyState]  # [R], of K_s
    accounts: list[RunTotals]  # [R]


class Finished(NamedTuple):
    """The run is complete."""

    summary: dict[str, Any]  # content of summary.json
    folder: Path | None
    earlier: bool  # it had been finished by an earlier call


Event: TypeAlias = (
    Described | Resumed | Compiling | Compiled | Started | RoundDone | Diagnosed | Snapshot | Finished
)  # fmt: skip
Listener: TypeAlias = Callable[[Event], None]
