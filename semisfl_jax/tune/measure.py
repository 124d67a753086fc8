"""Measures forms in turns, within a time, and chooses one."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from semisfl_jax.errors import UserError
from semisfl_jax.forms import Form
from semisfl_jax.wording import shorten

Run = Callable[[], float]  # computes something and returns the seconds that it took

NOISE = 1.05  # a form must be faster than the usual one by this factor to be chosen over it
SLOWER = 3.0  # a form that takes so many times as long as the best one is measured no further
_TO_BEGIN = 0.7  # share of the time after which no other form is begun
_TURNS = 3, 15  # least and most
_ENOUGH, _MOST = 0.3, 20  # seconds of repetitions, or how many, of which the lowest counts


class Clock(NamedTuple):
    """A time that is running out."""

    seconds: float  # in all
    end: float  # as time.monotonic() has it

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.0, self.end - time.monotonic())

    def __str__(self) -> str:
        return f'about {self.left:.0f} s left' if self.left >= 1 else 'beyond the time given, as two forms are needed'


def clock(seconds: float) -> Clock:
    """A clock that starts now."""
    return Clock(seconds, time.monotonic() + seconds)


class Measured(NamedTuple):
    """Seconds by form, in turns, and why other forms have none."""

    times: dict[Form, list[float]]
    left_out: dict[Form, str]


def lowest(run: Run) -> float:
    """The lowest of some seconds: many if they are few."""
    times = [run()]
    while sum(times) < _ENOUGH and len(times) < _MOST:
        times.append(run())
    return min(times)


def promising(candidates: Sequence[Form], times: Mapping[str, float]) -> tuple[list[Form], dict[Form, str]]:
    """The candidates that are worth a round, the first one and those of its convolution before the others; and why the
    rest are not.

    Args:
      candidates: at least one.
      times: of each convolution, in any unit.
    """
    best = min(times.values())
    ratios = {form: times[form.convolution] / best for form in candidates}
    slow = {
        form: f'not measured: a few images take {ratio:.0f} times as long with {form.convolution}'
        for form, ratio in ratios.items()
        if ratio > SLOWER
    }
    first = candidates[0]
    worth = [form for form in candidates if form not in slow]
    return sorted(worth, key=lambda form: (form != first, form.convolution != first.convolution, ratios[form])), slow


def in_turns(runs: Mapping[Form, Run], turns: int) -> dict[Form, list[float]]:
    """The seconds of each, `turns` times in alternation."""
    times: dict[Form, list[float]] = {form: [] for form in runs}
    for _, (form, run) in itertools.product(range(turns), runs.items()):
        times[form].append(run())
    return times


def measure(
    candidates: Sequence[Form], build: Callable[[Form], Run], clock: Clock, say: Callable[[str], None]
) -> Measured:
    """Compiles and measures forms, of which the most promising come first.

    Args:
      candidates: at least one.
      build: compiles one; UserError where it cannot be computed.
      clock: the time that all may take, though at least two forms are compiled, and some turns made.
      say: called with what is done next and the time that is left.

    Raises:
      UserError: no form can be computed.
    """
    runs: dict[Form, Run] = {}
    first: dict[Form, float] = {}
    left_out: dict[Form, str] = {}
    for form in candidates:
        if len(runs) > 1 and clock.left < (1 - _TO_BEGIN) * clock.seconds:
            left_out[form] = f'not measured: the {clock.seconds:g} s are running out; --seconds=N gives more'
            continue
        say(f'compiling {form}, {clock}')
        try:
            run = build(form)
            first[form] = lowest(run)
        except (UserError, jax.errors.JaxRuntimeError) as error:
            left_out[form] = f'cannot be computed: {shorten(next(iter(str(error).splitlines()), ""))}'
            continue
        runs[form] = run
    if not runs:
        raise UserError(f'no form of the round can be computed; {candidates[0]} {left_out[candidates[0]]}')
    best = min(first.values())
    for form in [form for form, took in first.items() if took > SLOWER * best]:
        left_out[form] = f'took {first[form] / best:.1f} times as long as the best at first'
        del runs[form]
    times: dict[Form, list[float]] = {form: [] for form in runs}
    for turn in range(_TURNS[1] if len(runs) > 1 else 1):
        turn_takes = sum(first[form] for form in runs)
        if turn >= _TURNS[0] and clock.left < turn_takes:
            break
        if turn_takes > 1.0 or not turn:
            say(f'turn {turn + 1}, a round in each of {len(runs)} forms, {clock}')
        for form, took in in_turns(runs, 1).items():
            times[form] += took
    return Measured(times, left_out)


def best(times: Mapping[Form, Sequence[float]], usual: Form) -> Form:
    """The form of the lowest median, or the usual one if that is within noise of it.

    Turns are compared one by one, since what else the machine does slows all forms of a turn.
    """
    fastest = min(times, key=lambda form: statistics.median(times[form]))
    if usual not in times:
        return fastest
    ratios = [slow / fast for slow, fast in zip(times[usual], times[fastest], strict=True)]
    return fastest if statistics.median(ratios) > NOISE else usual
