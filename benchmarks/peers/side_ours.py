"""This project, as `semisfl_jax.train` runs it: `python launch.py --config=configs/fedavg.py` without its folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import semisfl_jax as sfl
from benchmarks.peers import problem, task
from semisfl_jax.training import events, interrupt

NO_SIGNAL = 1  # any number but 0


def main() -> None:
    """Trains the rounds of the task; if its weights are not wanted, one more begins, as the last one is evaluated."""
    folder, weights = task.arguments()
    config = problem.configuration(problem.read(folder))
    rounds, request = config.rounds, interrupt.Request()
    if not weights:
        config.rounds += 1

    def listen(event: events.Event) -> None:
        if isinstance(event, events.RoundDone):
            task.done(event.round)
            if event.round == rounds and not weights:
                request.signum = NO_SIGNAL

    @contextmanager
    def stop() -> Iterator[interrupt.Request]:
        yield request

    with suppress(interrupt.Stopped):
        result = sfl.train(config, callbacks=[listen], interrupts=stop, bar=False)
        task.save(problem.flat(result.state.student), weights)


if __name__ == '__main__':
    main()
