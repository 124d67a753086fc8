"""What the commands beside training share: their help, and flags of their own beside those of a configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from absl import flags

from semisfl_jax.core.errors import UserError, exit_status, first_line, print_anything


def main(argv: list[str], text: str | None, command: Callable[[], None], needs_words: bool = False) -> int:
    """Prints help if it is asked for, and otherwise runs a command.

    Args:
      argv: the command line, program name first.
      text: the help.
      command: what to run.
      needs_words: whether a command line without words is a mistake, before whose line the help is printed.

    Returns:
      The exit status.
    """
    print_anything()
    if {'-h', '--help'} & set(argv):
        print(text)
        return 0
    if needs_words and len(argv) < 2:
        print(text)
    return exit_status(command)


def own_flags(values: flags.FlagValues, argv: Sequence[str], others: bool = True) -> list[str]:
    """Reads the flags that `values` defines, the help of each completing 'must be …'; returns the other words.

    Args:
      values: which flags there are.
      argv: the command line, program name first.
      others: whether it may have other flags, which are then among the words.

    Raises:
      UserError: one of them lacks its value, or has a wrong one; or there is another one that may not be.
    """
    try:
        return values(argv, known_only=others)
    except flags.Error as error:
        wrong = re.match(r'flag (--(\w+)=.*?): ', str(error), re.DOTALL)
        what = f'{wrong[1]}: must be {values[wrong[2]].help}' if wrong else first_line(error)
        raise UserError(f'{what} (see --help)') from error
