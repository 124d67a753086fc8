"""User-facing errors: one exception with its exit status, warnings, and how both show values."""

import difflib
import errno
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

# Remedies for file errors that no check can foresee
_REMEDIES = {errno.ENAMETOOLONG: 'choose a shorter one', errno.EFBIG: 'raise the limit of this shell (ulimit -f)'}
_REMEDIES |= dict.fromkeys((errno.ENOSPC, errno.EDQUOT), 'make room; a run then resumes by the same command')
_log = logging.getLogger('semisfl_jax')


class UserError(Exception):
    """An error that the user can fix: one line that names the value, why it is wrong and what to do.

    The command prints only the message, without a traceback, and exits with `status`. Long values in it are truncated.
    """

    status = 2  # the exit status of the process

    def __str__(self) -> str:
        return one_line(super().__str__())


class Diverged(UserError):
    """Training whose losses or weights are no longer finite: sweeps tell it from other errors by its exit status."""

    status = 3


STOPPED = ': stopped. '  # between what a `Diverged` says and its advice


def without_advice(message: str) -> str:
    """Cuts the advice from the message of a `Diverged`: 'loss_supervised is nan in round 4'."""
    return message.partition(STOPPED)[0]


def warn(message: str) -> None:
    """Logs a one-line warning to the logger `semisfl_jax`; the program continues."""
    _log.warning(one_line(message))


@contextmanager
def printing() -> Iterator[None]:
    """Prints warnings as lines 'warning: MESSAGE', and '?' where the terminal's encoding lacks a character."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter('warning: %(message)s'))
    propagated, _log.propagate = _log.propagate, False
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.propagate = propagated


def exit_status(command: Callable[[], None]) -> int:
    """Runs a command of this package and prints its error as one line; returns 0, or the status of its `report`."""
    try:
        with printing():
            command()
    except (UserError, OSError) as error:
        return report(error)
    return 0


def report(error: UserError | OSError) -> int:
    """Prints the error of a command as one line; raises it if it is none of a command.

    Returns:
      The exit status: 2 after a mistake of the user or on a full disk; 3 after training that diverged; 141, as by
      SIGPIPE, if nobody reads the output.
    """
    if isinstance(error, UserError):
        print('error:', error, file=sys.stderr)
        return error.status
    if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's last flush would fail, too
        return 128 + signal.SIGPIPE
    if error.errno not in _REMEDIES:
        raise error
    name = error.filename2 or error.filename  # filename2 is the target of a move
    what = f'{error.strerror}: {name}' if name else error.strerror
    print('error:', one_line(f'{what}; {_REMEDIES[error.errno]}'), file=sys.stderr)
    return 2


_LONG = 200  # consecutive characters, more than in any name and almost any path
_SHOWN = 60
_LINE, _LINE_END = 1000, 300  # characters of a message, and those kept of its end, which holds the advice


def one_line(message: str) -> str:
    """Joins a message to one line of bounded length, truncating long user-supplied values."""
    text = re.sub(rf'[^\s\'"=;,()]{{{_LONG},}}', lambda match: shorten(match[0]), ' '.join(message.split()))
    return text if len(text) <= _LINE else f'{text[: _LINE - _LINE_END]} ... {text[-_LINE_END:]}'


def shorten(value: object) -> str:
    """Returns a value as messages show it: complete, or its beginning and its length."""
    text = str(value)
    return text if len(text) < _LONG else f'{text[:_SHOWN]}... ({len(text):,} characters)'


def describe(value: object) -> str:
    """Describes a value that a user's function returned: 'float32 [2, 10]', 'a dict', 'None', '3'."""
    if hasattr(value, 'dtype') and hasattr(value, 'shape'):
        return f'{value.dtype} {list(value.shape)}'
    if value is None or isinstance(value, (bool, int, float, str)):
        return shorten(repr(value))
    if isinstance(value, type):
        return f'the class {value.__name__}'
    return with_article(type(value).__name__)


def install(extra: str) -> str:
    """Returns the advice that names the command which installs an extra of this package."""
    return f"pip install 'semisfl_jax[{extra}]', or in a checkout pip install -e '.[{extra}]'"


def with_article(noun: str) -> str:
    """Puts an article before a noun: 'an int', 'a str'."""
    return f'{"an" if noun[0].lower() in "aeiou" else "a"} {noun}'


def first_line(error: BaseException) -> str:
    """Returns the first line of another library's error, or the error's type if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def size(count: float) -> str:
    """Formats a number of bytes: '17 bytes', '64 MiB', '1.5 GiB'."""
    for unit in ('bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'):
        if count < 1024 or unit == 'PiB':
            break
        count /= 1024
    return f'{count:,.{int(unit != "bytes" and count < 10 and count != int(count))}f} {unit}'


def count(number: int, noun: str) -> str:
    """Formats a number with its noun: '1 round', '1,000 rounds'."""
    return f'{number:,} {noun}{"s" * (number != 1)}'


def columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Aligns the cells of `rows` in columns, two spaces apart.

    Args:
      rows: cells by row.
      sides: one character per column: '<' aligns left, '>' right.

    Returns:
      Lines of text.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[f'{cell:{side}{width}}' for cell, side, width in zip(row, sides, widths, strict=True)] for row in rows]
    return ['  '.join(row).rstrip() for row in cells]


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the name that is most similar to `word`, ignoring case; '' if none is close.

    Args:
      word: the word.
      known: the names to choose from.
      cutoff: the least similarity, in [0, 1].
    """
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else ''


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence about an unknown name: '; did you mean …?', or '' if none is close."""
    name = nearest(word, known)
    return f"; did you mean '{name}'?" if name else ''


def use_one_of(word: str, known: Iterable[str]) -> str:
    """Returns advice for an unknown name: all known names, and the one that was probably meant."""
    known = tuple(known)
    names = ', '.join(f"'{name}'" if ',' in name else name for name in known)
    return f'use one of {names}{did_you_mean(word, known)}'
