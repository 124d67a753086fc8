"""User-facing errors: one exception, and warnings."""

from __future__ import annotations

import sys

from semisfl_jax.wording import one_line


class UserError(Exception):
    """An error that the user can fix: one line that names the value, why it is wrong and what to do.

    `launch.py` prints only the message, without a traceback, and exits with status 2. Long values in it are truncated.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


def warn(message: str) -> None:
    """Prints a one-line warning; the program continues."""
    print(f'warning: {one_line(message)}', file=sys.stderr, flush=True)
