"""The command: python -m semisfl_jax --config=digits, or semisfl, or python launch.py in a checkout."""

from __future__ import annotations

import sys

from semisfl_jax.config import command_line
from semisfl_jax.errors import UserError
from semisfl_jax.training.interrupt import Stopped


def main(argv: list[str]) -> int:
    """Runs the command line `argv`, program name first, and returns the exit status."""
    if {'--help', '-h', '-help', '--helpfull', '--helpshort'} & set(argv):
        print(command_line.help_text(), end='')
        return 0
    try:
        command = command_line.parse(argv, studies=True)
        if command_line.STUDY in command.config:
            from semisfl_jax.studies import engine

            engine.run(command.config.study, command.given, command.workdir)
            return 0
        from semisfl_jax import train

        train.run(command.config, command.workdir or None, name=command.name)
    except UserError as error:
        print('error:', ' '.join(str(error).split()), file=sys.stderr)
        return 2
    except Stopped as stop:
        print(stop)
        return 128 + stop.signum
    except KeyboardInterrupt:
        print('interrupted before the first round: nothing to save', file=sys.stderr)
        return 130
    return 0


def command() -> int:
    """The console script `semisfl`."""
    return main(sys.argv)


if __name__ == '__main__':
    sys.exit(command())
