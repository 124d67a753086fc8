"""The progress of a run: a bar on a terminal, an occasional plain line in a log file."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

from semisfl_jax.tasks import Headline

_SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Shows round, losses, the headline score, K_s if the server trains, and the time remaining."""

    def __init__(self, done: int, rounds: int, headline: Headline):
        self._headline = headline
        self._rounds, self._first = rounds, done
        self._score = ''
        self._start = self._last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=rounds, initial=done, unit='round', dynamic_ncols=True, leave=False)

    def update(self, *trials: dict[str, Any]) -> None:
        """Shows a round, given a line of metrics.jsonl for each trial; scores are means over the trials."""
        record = trials[0]

        def mean(key: str) -> float | None:
            known = [trial[key] for trial in trials if trial.get(key) is not None]  # a trial may have lost all clients
            return sum(known) / len(known) if known else None

        headline = self._headline
        evaluated = headline.key in record
        if evaluated:
            over = f' (mean of {len(trials)})' if len(trials) > 1 else ''
            self._score = f' {headline.text} {headline.score.text(mean(headline.key))}{over}'
        losses = ' '.join(
            f'{name} {value:.3f}'
            for name, key in (
                ('sup', 'loss_supervised'),
                ('cons', 'loss_consistency'),
                ('clust', 'loss_clustering'),
                ('client', 'loss_local'),
            )
            if (value := mean(key)) is not None
        )
        k_s = ' to '.join(map(str, sorted({min(t['k_s'] for t in trials), max(t['k_s'] for t in trials)})))
        text = f'{losses}{self._score}' + (f' K_s {k_s}' if k_s != '0' else '')
        for trial in trials:
            if trial.get('clients_failed') and not trial['clients']:
                tqdm.write(
                    f'round {record["round"]}: all clients failed; '
                    f'{"the model was updated by the server alone" if trial["k_s"] else "the model stays as it was"}'
                    f'{f" (trial {trials.index(trial) + 1} of {len(trials)})" if len(trials) > 1 else ""}'
                )
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
            return
        now, done = time.monotonic(), record['round']
        if evaluated or now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            remaining = (now - self._start) / (done - self._first) * (self._rounds - done)
            print(f'round {done}/{self._rounds}  {text}  {tqdm.format_interval(remaining)} left', flush=True)

    def close(self) -> None:
        """Removes the bar from the screen."""
        if self._bar is not None:
            self._bar.close()
