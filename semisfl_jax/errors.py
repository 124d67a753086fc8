"""What is meant for the eyes of a user: one exception, and warnings."""

from __future__ import annotations

import sys

from semisfl_jax.wording import one_line


class UserError(Exception):
    """Something the user can mend: one line that names the value, why it is wrong and what to do.

    `launch.py` prints the message alone, without a traceback, and exits with status 2. Long values in it are cut short.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


def warn(message: str) -> None:
    """Prints a warning of one line; the program goes on."""
    print(f'warning: {one_line(message)}', file=sys.stderr, flush=True)
