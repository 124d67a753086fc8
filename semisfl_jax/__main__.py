"""The command: python -m semisfl_jax --config=digits, or semisfl, or python launch.py in a checkout."""

from __future__ import annotations

import sys

from semisfl_jax.config import command_line
from semisfl_jax.core.errors import exit_status
from semisfl_jax.training import interrupt


def main(argv: list[str]) -> int:
    """Runs the command line `argv`, program name first, and returns the exit status."""
    if {'--help', '-h', '-help', '--helpfull', '--helpshort'} & set(argv):
        words = [word for word in argv[1:] if not word.startswith('-')]
        own = [word.partition('=')[2] for word in argv if word.startswith('--config=')]
        return exit_status(lambda: print(command_line.help_text(words, own), end=''))
    try:
        return exit_status(lambda: _run(command_line.parse(argv, studies=True)))
    except interrupt.Stopped as stop:
        print(stop)
        return 128 + stop.signum
    except KeyboardInterrupt:
        print('interrupted before the first round: nothing to save', file=sys.stderr)
        return 130


def _run(command: command_line.Command) -> None:
    if definition := command.config.get(command_line.STUDY) or command.config.get(command_line.SWEEP):
        from semisfl_jax.studies import engine
        from semisfl_jax.training.events import print_lines

        engine.run(definition, command.given, command.workdir, show=print_lines)
    else:
        _train(command)


def _train(command: command_line.Command) -> None:
    """Trains, and prints what the run reports; Ctrl-C stops it after the current round."""
    from semisfl_jax import config as config_lib
    from semisfl_jax.config import ignored_keys
    from semisfl_jax.core import hosts
    from semisfl_jax.training import events, loop
    from semisfl_jax.training.events import console

    config_lib.check(command.config)
    config = config_lib.resolve(command.config)
    if config.parallel.coordinator:
        print(f'joining the other processes, {hosts.SECONDS_TO_MEET // 60} minutes at most', file=sys.stderr)
    folder = command.workdir or config_lib.default_workdir(config, command.name)
    with console() as show:

        def listen(event: events.Event) -> None:
            show(event)
            if isinstance(event, events.Described):  # beside what the run is, once nothing is wrong with it
                ignored_keys.warn_ignored_keys(command.config, command.given)

        loop.train_resolved(config, folder, listen, interrupts=interrupt.listen)


def command() -> int:
    """The console script `semisfl`."""
    return main(sys.argv)


if __name__ == '__main__':
    sys.exit(command())
