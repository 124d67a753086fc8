"""The events that a run reports while it trains. A listener is a function of them; `console` is the command's."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from tqdm import tqdm

from semisfl_jax.base.errors import count
from semisfl_jax.core.frequency import FrequencyState
from semisfl_jax.tasks import Headline
from semisfl_jax.training import metrics


class Described(NamedTuple):
    """The experiment was built."""

    lines: list[str]  # on algorithm, data, split, model and device
    folder: Path | None  # of the outputs


class Resumed(NamedTuple):
    """A checkpoint was restored."""

    round: int  # rounds completed


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
    checksums: list[str]  # [R], of the lines of metrics.jsonl


class Finished(NamedTuple):
    """The run is complete."""

    summary: dict[str, Any]  # content of summary.json
    folder: Path | None
    earlier: bool  # an earlier call finished it


Event: TypeAlias = Described | Resumed | Compiling | Compiled | Started | RoundDone | Diagnosed | Snapshot | Finished
Listener: TypeAlias = Callable[[Event], None]


_SECONDS_BETWEEN_LINES = 30.0
_LOSSES = {'sup': 'loss_supervised', 'cons': 'loss_consistency', 'clust': 'loss_clustering', 'client': 'loss_local'}


class Progress:
    """Shows losses, the headline score, K_s and the time remaining.

    In a terminal it is a bar; elsewhere it prints a line after each evaluation, and now and then between them.
    """

    def __init__(self, done: int, rounds: int, headline: Headline):
        self._headline, self._first, self._rounds, self._score = headline, done, rounds, ''
        self._start = self._last_line = time.monotonic()
        # disable=None: no bar where stderr is no terminal
        self.bar = tqdm(total=rounds, initial=done, unit='round', dynamic_ncols=True, leave=False, disable=None)

    def update(self, *trials: dict[str, Any]) -> None:
        """Shows a round, given a line of metrics.jsonl for each trial; all values are means over the trials."""

        def mean(key: str) -> float | None:
            known = [trial[key] for trial in trials if trial.get(key) is not None]  # a trial may have lost all clients
            return sum(known) / len(known) if known else None

        done, score = trials[0]['round'], self._headline.key
        if score in trials[0]:
            self._score = f'{self._headline.text} {self._headline.score.text(mean(score))} '
        losses = (f'{name} {value:.3f} ' for name, key in _LOSSES.items() if (value := mean(key)) is not None)
        text = f'{"".join(losses)}{self._score}' + (f'K_s {mean("k_s"):g}' if mean('k_s') else '')
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update()
        now = time.monotonic()
        if self.bar.disable and (score in trials[0] or now - self._last_line >= _SECONDS_BETWEEN_LINES):
            remaining, self._last_line = (now - self._start) / (done - self._first) * (self._rounds - done), now
            print(f'round {done}/{self._rounds}  {text}  {tqdm.format_interval(remaining)} left', flush=True)


@contextmanager
def console() -> Iterator[Listener]:
    """Yields the listener of the command, which prints what a run reports, and shows its progress.

    At the end of the block, it removes the progress bar.
    """
    progress = None

    def listen(event: Event) -> None:
        nonlocal progress
        match event:
            case Described(lines, folder):
                print_lines(*lines, f'workdir    {folder}' if folder else 'workdir    none: nothing is written')
            case Resumed(completed):
                print_lines(f'resuming from the checkpoint of round {completed}')
            case Compiling(program):
                print(f'preparing the {program} …', end=' ', flush=True)
            case Compiled(_, seconds, cached):
                print_lines(f'{seconds:.1f} s{" (compiled program loaded from cache)" if cached else ""}')
            case Started(completed, rounds, headline):
                progress = Progress(completed, rounds, headline)
            case RoundDone(records):
                if progress:
                    progress.update(*records)
            case Finished(content, folder, earlier):
                if progress:
                    progress.bar.close()
                if earlier:
                    print_lines(f'{count(content["rounds"], "round")} already done')
                print_lines(metrics.final_message(content, folder))

    try:
        yield listen
    finally:
        if progress:
            progress.bar.close()


def print_lines(*lines: str) -> None:
    """Prints lines and flushes them, as a pipe would hold them back."""
    print('\n'.join(lines), flush=True)
