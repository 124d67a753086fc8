"""Callbacks: what a run shows while it trains, early stopping, the best checkpoint, a profile.

Each function here returns a callback for `train(config, folder, callbacks=[...])`. One of your own is a function of the
events of `events.py`; those below are examples.
"""

import sys
import threading
import time
from typing import Any

import jax
from tqdm import tqdm

from semisfl_jax import tasks
from semisfl_jax.base.errors import UserError, count
from semisfl_jax.tasks import Headline
from semisfl_jax.training import events, metrics
from semisfl_jax.training.events import Callback, Described, Ended, Event, Finished, Lines, RoundDone, Started

BEST = 'best'  # folder beside checkpoints/
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_TICKS = 30.0, 1.0
_LOSSES = {'sup': 'loss_supervised', 'cons': 'loss_consistency', 'clust': 'loss_clustering', 'client': 'loss_local'}


def early_stopping(patience: int, key: str = '') -> Callback:
    """Stops a seed once its score on validation images has not improved for a while.

    It decides by the lines of metrics.jsonl alone, so a run that was killed stops where it would have stopped.

    Args:
      patience: number of evaluations without a better score.
      key: a score in metrics.jsonl, such as 'student_accuracy'; '' for the one that judges the method.

    Raises:
      UserError: from the callback, if scores are of test images, or there is no such score.
    """
    watched = _Watched('early_stopping', key)

    def call(event: Event) -> dict[int, str] | None:
        watched.check(event)
        if not isinstance(event, events.Resumed | RoundDone):
            return None
        since = {seed: watched.since_best(lines) for seed, lines in event.lines.items()}
        text = f'no better {watched.score.text} in {count(patience, "evaluation")}'
        return {seed: text for seed, number in since.items() if number >= patience}

    return call


def keep_best(key: str = '') -> Callback:
    """Keeps the checkpoint with the best score on validation images in the folder best/, beside the last ones.

    `load_trained(folder, 'best')` loads it.

    Args:
      key: as in `early_stopping`.

    Raises:
      UserError: from the callback, as in `early_stopping`, or if the run has no folder.
    """
    watched = _Watched('keep_best', key)

    def call(event: Event) -> None:
        watched.check(event)
        if isinstance(event, Described) and not event.folder:
            raise UserError('keep_best needs a folder; give one to train')
        if isinstance(event, RoundDone):
            for seed, lines in event.lines.items():
                if watched.since_best(lines) == 0 and lines[-1].get(watched.score.key) is not None:
                    event.save(seed, BEST)

    return call


class _Watched:
    """A score by which a callback chooses; of validation images, as test images would then be training data."""

    score: Headline
    headline: str  # key of the score that judges the method

    def __init__(self, callback: str, key: str):
        self.callback, self.key = callback, key

    def check(self, event: Event) -> None:
        """Finds the score when a run is `Described`; raises UserError if it cannot be used."""
        if isinstance(event, Described):
            score = tasks.split_key(self.key) if self.key else event.headline
            if not score:
                raise UserError(f"{self.callback}: '{self.key}' is not a score; give one such as teacher_accuracy")
            if event.headline.split == 'test':
                how = "set data.num_validation and data.eval_split='validation'"
                raise UserError(f'{self.callback} would choose by test images, whose scores then mean nothing; {how}')
            self.score, self.headline = score._replace(split=event.headline.split), event.headline.key

    def since_best(self, lines: list[dict[str, Any]]) -> int:
        """Counts the evaluations after the first of the best; 0 if there are none. UserError if they lack the score."""
        if self.headline in lines[-1] and self.score.key not in lines[-1]:
            raise UserError(f'{self.callback}: this run has no {self.score.key}; it has {self.headline}')
        scores = [line[self.score.key] for line in lines if line.get(self.score.key) is not None]
        return len(scores) - 1 - scores.index(self.score.score.best(scores)) if scores else 0


def profiler(folder: str, rounds: int = 3, skipped: int = 1) -> Callback:
    """Traces some rounds with `jax.profiler`, of process 0; `tensorboard --logdir` or Perfetto show the trace.

    Args:
      folder: folder of the trace.
      rounds: number of rounds to trace.
      skipped: number of rounds before them in this call of `train`; the first ones warm up.
    """
    done, tracing = 0, False

    def call(event: Event) -> None:
        nonlocal done, tracing
        done += isinstance(event, RoundDone)
        if not tracing and isinstance(event, Started | RoundDone) and done == skipped:
            jax.profiler.start_trace(folder)
            tracing = True
        elif tracing and (done == skipped + rounds or isinstance(event, Ended)):
            jax.profiler.stop_trace()
            tracing = False

    return call


class Progress:
    """Shows losses, the headline score, K_s and the time remaining.

    In a terminal or notebook it is a bar; elsewhere it prints a line after each evaluation, and now and then between
    them.
    """

    def __init__(self, done: int, rounds: int, headline: Headline):
        self._headline, self._first, self._rounds, self._score = headline, done, rounds, ''
        self._start = self._last_line = time.monotonic()
        self.bar = tqdm(
            total=rounds, initial=done, unit='round', dynamic_ncols=True, leave=False, disable=not _shows_bars()
        )

    def update(self, done: int, trials: Lines) -> None:
        """Shows a round, by the newest line of each seed; all values are means over the seeds."""
        newest = [lines[-1] for lines in trials.values()]

        def mean(key: str) -> float | None:
            known = [line[key] for line in newest if line.get(key) is not None]  # a seed may have lost all clients
            return sum(known) / len(known) if known else None

        evaluated = any(self._headline.key in line for line in newest)
        if evaluated:
            self._score = f'{self._headline.text} {self._headline.score.text(mean(self._headline.key))} '
        losses = (f'{name} {value:.3f} ' for name, key in _LOSSES.items() if (value := mean(key)) is not None)
        text = f'{"".join(losses)}{self._score}' + (f'K_s {mean("k_s"):g}' if mean('k_s') else '')
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update()
        now = time.monotonic()
        if self.bar.disable and (evaluated or now - self._last_line >= _SECONDS_BETWEEN_LINES):
            remaining, self._last_line = (now - self._start) / (done - self._first) * (self._rounds - done), now
            print(f'round {done}/{self._rounds}  {text}  {tqdm.format_interval(remaining)} left', flush=True)


class Clock:
    """Shows how many seconds something has taken so far, until it is closed; then the line is empty again."""

    def __init__(self, text: str):
        self._closed = threading.Event()
        self._line = tqdm(bar_format='{desc}', leave=False, dynamic_ncols=True)
        self._ticking = threading.Thread(target=self._tick, args=(text, time.monotonic()), daemon=True)
        self._ticking.start()

    def _tick(self, text: str, start: float) -> None:
        while not self._closed.is_set():
            self._line.set_description_str(f'{text} … {time.monotonic() - start:.0f} s')
            self._closed.wait(_SECONDS_BETWEEN_TICKS)

    def close(self) -> None:
        """Ends the clock."""
        self._closed.set()
        self._ticking.join()
        self._line.close()


def _shows_bars() -> bool:
    """Returns whether stderr is a terminal, or the cell of a notebook."""
    python = sys.modules.get('IPython')
    return sys.stderr.isatty() or hasattr(python and python.get_ipython(), 'kernel')


def _progress() -> Callback:
    """Shows the `Progress` of a run, and before it, where there is a bar, a `Clock` of what compiles."""
    shown: Progress | None = None
    clock: Clock | None = None
    described: Described

    def call(event: Event) -> None:
        nonlocal shown, clock, described
        if clock:
            clock.close()
            clock = None
        match event:
            case Described():
                described = event
            case events.Compiling(program) if _shows_bars():
                clock = Clock(f'preparing the {program}')
            case Started(completed):
                shown = Progress(completed, described.rounds, described.headline)
            case RoundDone(number, lines) if shown:
                shown.update(number, lines)
            case Finished() | Ended() if shown:
                shown.bar.close()

    return call


def bar() -> Callback:
    """Shows a progress bar in a terminal or notebook, and nothing elsewhere."""
    return _progress() if _shows_bars() else lambda event: None


def console() -> Callback:
    """Prints what a run reports, as the command does; where there is no `bar`, also lines on its progress."""
    show: Callback = _progress() if not _shows_bars() else lambda event: None

    def call(event: Event) -> None:
        show(event)
        match event:
            case Described(text, folder):
                print_lines(*text, f'workdir    {folder}' if folder else 'workdir    none: nothing is written')
            case events.Resumed(completed):
                print_lines(f'resuming from the checkpoint of round {completed}')
            case events.Compiling(program) if not _shows_bars():  # else there is a clock
                print(f'preparing the {program} …', end=' ', flush=True)
            case events.Compiled(program, seconds, cached):
                began = f'preparing the {program} … ' if _shows_bars() else ''
                print_lines(f'{began}{seconds:.1f} s{" (compiled program loaded from cache)" if cached else ""}')
            case Finished(content, folder, earlier):
                if earlier:
                    print_lines(f'{count(content["rounds"], "round")} already done')
                print_lines(metrics.final_message(content, folder))

    return call


def print_lines(*lines: str) -> None:
    """Prints lines and flushes them, as a pipe would hold them back."""
    print('\n'.join(lines), flush=True)
