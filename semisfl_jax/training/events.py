"""The events that a run reports to its callbacks while it trains, in the order in which they come.

A callback is a function of an event, which process 0 calls. It changes no number of the run, but may ask to stop: what
it returns after `Resumed` or `RoundDone` says why, as one text for all seeds or as {seed: text}; nothing, or '', goes
on. A seed stops at the evaluation of that round or, if there was none, at the next one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from semisfl_jax.tasks import Headline

Lines: TypeAlias = dict[int, list[dict[str, Any]]]  # {seed: its lines of metrics.jsonl so far, the newest last}


class Described(NamedTuple):
    """The experiment was built."""

    text: list[str]  # lines on algorithm, data, split, model and device
    folder: Path | None  # of the outputs
    rounds: int  # in total
    headline: Headline  # the number by which the method is judged


class Resumed(NamedTuple):
    """Checkpoints were restored."""

    round: int  # rounds completed, by the seed that is least advanced
    lines: Lines


class Compiling(NamedTuple):
    """A program is about to be compiled."""

    program: str  # 'round' | 'evaluation'


class Compiled(NamedTuple):
    """A program was compiled."""

    program: str
    seconds: float
    cached: bool  # found in the compilation cache


class Started(NamedTuple):
    """The loop over rounds begins."""

    round: int  # rounds completed


class Diagnosed(NamedTuple):
    """The diagnostic arrays of a round were computed (`diagnostics`)."""

    round: int  # rounds completed
    arrays: dict[int, dict[str, np.ndarray]]  # by seed


class RoundDone(NamedTuple):
    """A round was computed, and evaluated if it was its turn. Seeds that have stopped are left out."""

    round: int  # rounds completed
    lines: Lines
    state: Callable[[int], Any]  # of a seed: that of the method, on the devices, until the callback returns
    save: Callable[
        [int, str], None
    ]  # (seed, name): saves its state in the folder `name` of its outputs, as the only one


class Finished(NamedTuple):
    """The run is complete, or all of its seeds have stopped early."""

    summary: dict[str, Any]  # content of summary.json
    folder: Path | None
    earlier: bool  # an earlier call finished it


class Ended(NamedTuple):
    """The run has ended, whether finished, interrupted or failed; what a callback has opened is to be closed."""


Event: TypeAlias = Described | Resumed | Compiling | Compiled | Started | Diagnosed | RoundDone | Finished | Ended
Answer: TypeAlias = str | Mapping[int, str] | None
Callback: TypeAlias = Callable[[Event], Answer]


def wishes(event: Event, answer: Answer) -> dict[int, str]:
    """Returns {seed: why it should stop}, as a callback answered to an event."""
    if not isinstance(event, Resumed | RoundDone) or not answer:
        return {}
    by_seed = answer if isinstance(answer, Mapping) else dict.fromkeys(event.lines, answer)
    return {seed: why for seed, why in by_seed.items() if why}
