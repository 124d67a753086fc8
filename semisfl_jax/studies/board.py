"""The progress of a study or sweep: a line for every finished run, and the remaining time of all runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tqdm import tqdm

from semisfl_jax import runs
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError

_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_LOOKS = 2.0


class Board:
    """Counts rounds, those of a run of R seeds R times; finished and failed runs count as done."""

    def __init__(self, work: Mapping[str, int], made: Callable[[str], int], say: Callable[[str], None]):
        """`work`: rounds of each run, by name; `made`: name -> how many of them are there; `say` prints a line."""
        self._work, self._made, self._print = dict(work), made, say
        self._total = sum(work.values())
        self._rounds = {name: self._count(name) for name in work}  # completed by each run, as of the last check
        self._before = sum(self._rounds.values())
        self._ended = 0
        self._current = ''
        self._start = self._last_line = self._last_look = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and work:
            self._bar = tqdm(total=self._total, initial=self._before, unit='round', dynamic_ncols=True, leave=False)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def start(self, name: str, text: str) -> None:
        """Announces that a run starts."""
        self._current = name
        there = self._count(name)  # made before, but not known of until now
        self._before += there - self._rounds[name]
        self._rounds[name] = there
        self._say(f'[{self._ended + 1}/{len(self._work)}] {text}')

    def end(self, name: str, text: str, unmade: int = 0) -> None:
        """Announces that a run has ended, and how. All its rounds count as done; `unmade` of them nobody made, so that
        they say nothing about how fast the others will be."""
        self._ended += 1
        self._before += unmade
        self._rounds[name] = self._work[name]
        self._say(f'    {text}  {self._left()}')

    def look(self) -> None:
        """Shows the progress of the current run periodically."""
        now, name = time.monotonic(), self._current
        if not name or now - self._last_look < _SECONDS_BETWEEN_LOOKS:
            return
        self._last_look = now
        self._rounds[name] = self._count(name)
        if self._bar is not None:
            self._bar.n = sum(self._rounds.values())
            self._bar.refresh()
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._say(f'    round {self._rounds[name]} of {self._work[name]}  {self._left()}')

    def _left(self) -> str:
        done = sum(self._rounds.values())
        completed = done - self._before
        if done >= self._total or completed <= 0:
            return ''
        left = (time.monotonic() - self._start) / completed * (self._total - done)
        return f'{100 * done // self._total} % of all rounds, about {tqdm.format_interval(left)} left'

    def _say(self, text: str) -> None:
        self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.n = sum(self._rounds.values())
            tqdm.write(text.rstrip())
        else:
            self._print(text.rstrip())

    def _count(self, name: str) -> int:
        return min(self._made(name), self._work[name])


def rounds(folder: Path) -> int:
    """Rounds completed in the folder of a run: lines in the metrics.jsonl of all its seeds."""
    count = 0
    for trial in runs.trials(folder):
        try:
            count += file_io.read(trial / 'metrics.jsonl').count(b'\n')
        except UserError:  # not started
            continue
    return count
