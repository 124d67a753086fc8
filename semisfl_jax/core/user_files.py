"""Reads files named by the user: regular files only, up to a plausible size.

A device may never end, reading a pipe may block forever, and a file that is too large is not the one intended.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from semisfl_jax.core.errors import UserError
from semisfl_jax.core.wording import size

_KINDS = {
    stat.S_IFDIR: 'a folder',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
    stat.S_IFIFO: 'a pipe',
    stat.S_IFSOCK: 'a socket',
}


def other_kind(mode: int) -> str:
    """The kind of a path with this `st_mode` if it is not a regular file, '' if it is."""
    return '' if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), 'a special file')


def expanded(path: str | os.PathLike, what: str) -> Path:
    """A path with ~ or ~NAME at its beginning replaced by that home folder.

    Args:
      path: as the user gave it.
      what: its name in messages: '--workdir'.

    Raises:
      UserError: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{what} '{path}' begins with {Path(path).parts[0]}, the home folder of a user that this machine does not "
            'know; write the whole path'
        ) from error


def check(path: str | os.PathLike, what: str, limit: int) -> Path:
    """Makes sure that `path` is a file of at most `limit` bytes, without opening it; returns it with ~ expanded.

    Args:
      path: the file.
      what: its name in messages: 'config.failures.trace'.
      limit: bytes.

    Raises:
      UserError: it is missing, not a regular file, or too large.
    """
    try:
        status = Path(path).expanduser().stat()
    except (OSError, ValueError, RuntimeError) as error:  # missing, an impossible file name, ~ without a home directory
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f"{what} '{path}' cannot be read ({reason}); correct the path") from error
    if kind := other_kind(status.st_mode):
        raise UserError(f"{what} '{path}' is {kind}; give a file")
    if status.st_size > limit:
        raise UserError(
            f"{what} '{path}' has {size(status.st_size)}, but at most {size(limit)} are allowed; use another file"
        )
    return Path(path).expanduser()


def read_bytes(path: str | os.PathLike, what: str, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
      UserError: as `check`, or it cannot be read.
    """
    file_path = check(path, what, limit)
    try:
        with file_path.open('rb') as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{what} '{path}' cannot be read ({error.strerror or error}); correct the path") from error
    if len(content) > limit:  # if the reported size was wrong or missing
        raise UserError(f"{what} '{path}' is longer than {size(limit)}; use another file")
    return content


def read_text(path: str | os.PathLike, what: str, limit: int) -> str:
    """The content of a UTF-8 text file of at most `limit` bytes, line endings unchanged.

    Raises:
      UserError: as `read_bytes`, or it is not UTF-8.
    """
    try:
        return read_bytes(path, what, limit).decode('utf-8-sig')  # some programs begin a file with a mark
    except UnicodeDecodeError as error:
        raise UserError(
            f"{what} '{path}' is not UTF-8 text (byte {error.start:,}); save it as UTF-8, or use another file"
        ) from error
