"""One start of the command, for `benchmarks.starts`: FILE and the words of a run. Writes to FILE what each stage took.

Imports nothing of this folder, so that another checkout, named by PYTHONPATH, can be measured as well.
"""

import itertools
import json
import sys
import threading
import time
from pathlib import Path

times = [('', time.perf_counter())]  # the end of each stage


def stamp(stage):
    """Notes the end of a stage."""
    times.append((stage, time.perf_counter()))


def main(file, words):
    """Runs the command, and writes the seconds of its stages."""
    import jax

    from semisfl_jax.__main__ import main as command
    from semisfl_jax.training import callbacks, events, loop  # noqa: F401  # all that a run imports

    stamp('imports')
    names = {'Described': 'data and model', 'Started': 'state and evaluation', 'RoundDone': 'round'}

    def note(event):
        if isinstance(event, events.Compiled) and event.program == 'round':
            stamp('compile')
        elif (name := type(event).__name__) in names:
            stamp(names[name])

    def lower(traced, *arguments, **named):
        first = threading.current_thread() is threading.main_thread() and 'trace' not in dict(times)
        if first and traced.fun_name in ('round_', 'round', 'rounds', 'spread', 'sharded_round'):
            stamp('trace')
            lowered = lower_(traced, *arguments, **named)
            stamp('lower')
            return lowered
        return lower_(traced, *arguments, **named)

    lower_, jax.stages.Traced.lower = jax.stages.Traced.lower, lower
    callbacks.console = lambda: note
    status = command(['launch.py', *words])
    stamp('end')
    seconds = {}
    for (_, start), (stage, end) in itertools.pairwise(times):
        seconds[stage] = seconds.get(stage, 0.0) + end - start
    Path(file).write_text(json.dumps(seconds))
    sys.exit(status)


if __name__ == '__main__':
    main(sys.argv[1], sys.argv[2:])
