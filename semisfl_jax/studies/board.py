"""The progress of a study: a line for every finished run, and the remaining time of all runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from semisfl_jax import own_files, runs
from semisfl_jax.errors import UserError
from semisfl_jax.studies.plan import Job

_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_LOOKS = 2.0


class Board:
    """Counts rounds, those of a run of R seeds R times; finished and failed runs count as done."""

    def __init__(self, folder: Path, jobs: Sequence[Job], say: Callable[[str], None]):
        self._folder, self._count, self._print = folder, len(jobs), say
        self._work = {job.name: job.rounds * len(job.seeds) for job in jobs}
        self._total = sum(self._work.values())
        self._rounds = {job.name: self._made(job) for job in jobs}  # completed by each run, as of the last check
        self._before = sum(self._rounds.values())
        self._ended = 0
        self._current: Job | None = None
        self._start = self._last_line = self._last_look = time.monotonic()
        self._bar = None
        if sys.stderr.isatty() and jobs:
            self._bar = tqdm(total=self._total, initial=self._before, unit='round', dynamic_ncols=True, leave=False)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.close()

    def start(self, job: Job) -> None:
        """Announces that a run starts."""
        self._current = job
        self._say(f'[{self._ended + 1}/{self._count}] {job.command()}')

    def end(self, job: Job, fault: str) -> None:
        """Announces that a run has finished, or has failed with the error line `fault`."""
        self._ended += 1
        self._rounds[job.name] = self._work[job.name]
        self._say(f'    {f"failed: {fault}" if fault else "done"}  {self._left()}')

    def look(self) -> None:
        """Shows the progress of the current run periodically."""
        now, job = time.monotonic(), self._current
        if job is None or now - self._last_look < _SECONDS_BETWEEN_LOOKS:
            return
        self._last_look, name = now, job.name
        self._rounds[name] = self._made(job)
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

    def _made(self, job: Job) -> int:
        """Rounds completed by a job: lines in the metrics.jsonl of all its seeds."""
        count = 0
        for folder in runs.trials(self._folder / job.name):
            try:
                count += own_files.content(folder / 'metrics.jsonl').count(b'\n')
            except UserError:  # not started
                continue
        return min(count, self._work[job.name])
