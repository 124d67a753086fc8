"""The progress of a study: a line for every run that ends, and the time left over all of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from semisfl_jax import runs
from semisfl_jax.studies.plan import Job

_SECONDS_BETWEEN_LINES = 60.0


class Board:
    """Counts rounds, one of R seeds R times; a run that ends or fails counts as done."""

    def __init__(self, folder: Path, jobs: Sequence[Job]):
        self._folder, self._jobs = folder, list(jobs)
        self._work = {job.name: job.rounds * len(job.seeds) for job in jobs}
        self._before = sum(map(self._rounds, jobs))
        self._ended: dict[str, int] = {}
        self._current: Job | None = None
        self._start = self._last_line = time.monotonic()
        self._bar = tqdm(total=self.total, unit='round', leave=False) if sys.stderr.isatty() and jobs else None

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.close()

    @property
    def total(self) -> int:
        return sum(self._work.values())

    def done(self) -> int:
        """Rounds behind us."""
        current = [self._current] if self._current and self._current.name not in self._ended else []
        waiting = [job for job in self._jobs if job.name not in self._ended and job not in current]
        return sum(self._ended.values()) + sum(map(self._rounds, [*current, *waiting]))

    def start(self, job: Job) -> None:
        """A run begins."""
        self._current = job
        self._say(f'[{len(self._ended) + 1}/{len(self._jobs)}] {job.command()}')

    def end(self, job: Job, fault: str) -> None:
        """It is finished, or has failed with the line `fault`."""
        self._ended[job.name] = self._work[job.name]
        self._say(f'    {f"failed: {fault}" if fault else "done"}  {self._left()}')

    def look(self) -> None:
        """Shows where the current run is, now and then."""
        now = time.monotonic()
        if self._bar is not None:
            self._bar.n = self.done()
            self._bar.refresh()
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._say(f'    round {self._rounds(self._current)} of {self._work[self._current.name]}  {self._left()}')

    def _left(self) -> str:
        done = self.done()
        made = done - self._before
        if done >= self.total or made <= 0:
            return ''
        left = (time.monotonic() - self._start) / made * (self.total - done)
        return f'{100 * done // self.total} % of all rounds, about {tqdm.format_interval(left)} left'

    def _say(self, text: str) -> None:
        self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.n = self.done()
            tqdm.write(text.rstrip())
        else:
            print(text.rstrip(), flush=True)

    def _rounds(self, job: Job) -> int:
        """Lines in metrics.jsonl, of all its seeds."""
        count = 0
        for folder in runs.trials(self._folder / job.name):
            try:
                count += (folder / 'metrics.jsonl').read_bytes().count(b'\n')
            except OSError:
                continue
        return min(count, self._work[job.name])
