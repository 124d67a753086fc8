"""User-facing errors: one exception with its exit status, warnings, and how values are worded in both."""

from __future__ import annotations

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

# Of errors of files that no check can foresee
_REMEDIES = {errno.ENAMETOOLONG: 'choose a shorter one', errno.EFBIG: 'raise the limit of this shell (ulimit -f)'}
_REMEDIES |= dict.fromkeys((errno.ENOSPC, errno.EDQUOT), 'make room; a run then resumes by the same command')
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


def exit_status(command: Callable[[], None]) -> int:
    """Runs a command of this package; returns 0, 2 after a mistake of the user or on a full disk, 3 after training that
    diverged, which it prints as one line, and 141, as by SIGPIPE, if nobody reads what it prints.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # '?' in a terminal that is not in UTF-8 and has no '±'
        sys.stdout.reconfigure(errors='replace')
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
        if error.errno not in _REMEDIES:
            raise
        name = error.filename2 or error.filename  # the second is where something was to be moved
        what = f'{error.strerror}: {name}' if name else error.strerror
        print('error:', one_line(f'{what}; {_REMEDIES[error.errno]}'), file=sys.stderr)
        return 2
    return 0


_LONG = 200  # consecutive characters, more than in any name and almost any path
_SHOWN = 60
_LINE, _LINE_END = 1000, 300  # characters of a message, and how many of them are its end, which holds the advice


def one_line(message: str) -> str:
    """A message as one line of bounded length: long user-supplied values in it are truncated."""
    text = re.sub(rf'[^\s\'"=;,()]{{{_LONG},}}', lambda match: shorten(match[0]), ' '.join(message.split()))
    return text if len(text) <= _LINE else f'{text[: _LINE - _LINE_END]} ... {text[-_LINE_END:]}'


def shorten(value: object) -> str:
    """A value as shown in a message: complete, or its beginning and its length."""
    text = str(value)
    return text if len(text) < _LONG else f'{text[:_SHOWN]}... ({len(text):,} characters)'


def found(value: object) -> str:
    """What somebody else's function returned, as shown in a message: 'float32 [2, 10]', 'a dict', 'None', '3'."""
    if hasattr(value, 'dtype') and hasattr(value, 'shape'):
        return f'{value.dtype} {list(value.shape)}'
    if value is None or isinstance(value, (bool, int, float, str)):
        return shorten(repr(value))
    if isinstance(value, type):
        return f'the class {value.__name__}'
    return with_article(type(value).__name__)


def several(key: str, value: str) -> str:
    """How to write several values of a list on the command line, if `value` is several that no quotes part; else ''."""
    names = [name.strip() for name in value.split(',')]
    return f'write --config.{key}="{tuple(names)}" for several'.replace(', ', ',') if len(names) > 1 else ''


def with_article(noun: str) -> str:
    """'an int', 'a str'."""
    return f'{"an" if noun[0].lower() in "aeiou" else "a"} {noun}'


def first_line(error: BaseException) -> str:
    """The first line of what an error of another library says, or its type if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def size(count: float) -> str:
    """A number of bytes: '17 bytes', '64 MiB', '1.5 GiB'."""
    for unit in ('bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'):
        if count < 1024 or unit == 'PiB':
            break
        count /= 1024
    return f'{count:,.{int(unit != "bytes" and count < 10 and count != int(count))}f} {unit}'


def count(number: int, noun: str) -> str:
    """'1 round', '1,000 rounds'."""
    return f'{number:,} {noun}{"s" * (number != 1)}'


def columns(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Lines of text with the cells of `rows` in columns, two spaces apart; `sides` has '<', to the left, or '>', to the
    right, for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[f'{cell:{side}{width}}' for cell, side, width in zip(row, sides, widths, strict=True)] for row in rows]
    return ['  '.join(row).rstrip() for row in cells]


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The name in `known` that is most similar to `word`, ignoring case; '' if none is close."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else ''


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: '; did you mean …?', or '' if none is close."""
    name = nearest(word, known)
    return f"; did you mean '{name}'?" if name else ''


def use_one_of(word: str, known: Iterable[str]) -> str:
    """Advice for an unknown name: all known names, and the one that was probably meant."""
    known = tuple(known)
    names = ', '.join(f"'{name}'" if ',' in name else name for name in known)
    return f'use one of {names}{did_you_mean(word, known)}'
