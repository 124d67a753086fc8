"""User-facing errors: one exception with its exit status, and warnings."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semisfl_jax.core.wording import one_line

_MAKE_ROOM = 'make room; a run then resumes by the same command'
_WHAT_TO_DO = {  # errors of files that no check can foresee
    errno.ENAMETOOLONG: 'choose a shorter one',
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
}
_log = logging.getLogger('semisfl_jax')


class UserError(Exception):
    """An error that the user can fix: one line that names the value, why it is wrong and what to do.

    The command prints only the message, without a traceback, and exits with `status`. Long values in it are truncated.
    """

    status = 2  # of the process

    def __str__(self) -> str:
        return one_line(super().__str__())


class Diverged(UserError):
    """Training whose losses or weights are no longer finite: sweeps tell it from other errors by its exit status."""

    status = 3


def warn(message: str) -> None:
    """Logs a one-line warning to the logger `semisfl_jax`; the program continues."""
    _log.warning(one_line(message))


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Prints warnings as lines 'warning: MESSAGE', for the commands of this package."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter('warning: %(message)s'))
    propagated, _log.propagate = _log.propagate, False
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.propagate = propagated


def print_anything() -> None:
    """Lets a terminal that is not in UTF-8 show '?' for what it does not have, such as '±', in place of an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')


def exit_status(command: Callable[[], None]) -> int:
    """Runs a command of this package.

    Returns:
      0; 2 after a mistake of the user or on a full disk, 3 after training that diverged, which it prints as one line;
      141, as by SIGPIPE, if nobody reads what it prints.
    """
    print_anything()
    try:
        with warnings_on_stderr():
            command()
    except UserError as error:
        print('error:', error, file=sys.stderr)
        return error.status
    except BrokenPipeError:  # whoever reads the output has enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's last flush would fail, too
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _WHAT_TO_DO:
            raise
        name = error.filename2 or error.filename  # the second is where something was to be moved
        what = f'{error.strerror}: {name}' if name else error.strerror
        print('error:', one_line(f'{what}; {_WHAT_TO_DO[error.errno]}'), file=sys.stderr)
        return 2
    return 0
