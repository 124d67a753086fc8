"""The listener of the command: prints what a run reports, and shows its progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from semisfl_jax.training import summary
from semisfl_jax.training.events import (
    Compiled,
    Compiling,
    Described,
    Event,
    Finished,
    Listener,
    Resumed,
    RoundDone,
    Started,
)
from semisfl_jax.training.progress import Progress


@contextmanager
def console() -> Iterator[Listener]:
    """A listener that prints to stdout. At the end of the block, the progress bar is removed."""
    progress = None

    def listen(event: Event) -> None:
        nonlocal progress
        match event:
            case Described(lines, folder):
                say(*lines, f'workdir    {folder}' if folder else 'workdir    none: nothing is written')
            case Resumed(completed):
                say(f'resuming from the checkpoint of round {completed}')
            case Compiling(program):
                print(f'compiling the {program} …', end=' ', flush=True)
            case Compiled(_, seconds, cached):
                say(f'{seconds:.1f} s{" (cached by an earlier run)" if cached else ""}')
            case Started(completed, rounds, headline):
                progress = Progress(completed, rounds, headline)
            case RoundDone(records):
                if progress:
                    progress.update(*records)
            case Finished(content, folder, earlier):
                if progress:
                    progress.close()
                if earlier:
                    say(f'{content["rounds"]} rounds are already done')
                say(summary.final_message(content, folder))

    try:
        yield listen
    finally:
        if progress:
            progress.close()


def say(*lines: str) -> None:
    """Prints lines at once, also into a pipe."""
    print('\n'.join(lines), flush=True)
