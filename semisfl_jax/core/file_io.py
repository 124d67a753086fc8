"""Reads files that users name and the JSON files that runs write, and writes files whole or not at all.

A user's file is a regular one, up to a plausible size: a device may never end, reading a pipe may block forever, and a
file that is too large is not the one intended. A sealed JSON object carries a checksum of its other entries, so that
later edits or damage are detected.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semisfl_jax.core.errors import UserError, size

_SEAL = 'sha256'


def expand_home(path: str | os.PathLike, what: str) -> Path:
    """A path with ~ or ~NAME at its beginning replaced by that home folder; `what` names it in messages.

    Raises:
      UserError: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{what} '{path}': no home folder of {Path(path).parts[0]}; write the whole path") from error


def check_file(path: str | os.PathLike, what: str, limit: float = math.inf) -> Path:
    """`path` with ~ expanded, which is a regular file of at most `limit` bytes, and is not opened.

    `what` names it in messages: 'config.failures.trace'; '' for a file of a run.

    Raises:
      UserError: it is missing, not a regular file, or too large.
    """
    name = f"{what} '{path}'" if what else path
    try:
        path = Path(path).expanduser()
        status = path.stat()
    except (OSError, ValueError, RuntimeError) as error:  # missing, an impossible file name, ~ without a home directory
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'{name} cannot be read ({reason})' + ('; correct the path' if what else '')) from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f'{name} is {"a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"}; use a file')
    if status.st_size > limit:
        raise UserError(f'{name} has {size(status.st_size)}, at most {size(limit)} allowed; use another file')
    return path


def read(path: str | os.PathLike, what: str = '', limit: float = math.inf) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
      UserError: as `check_file`, or it cannot be read.
    """
    file_path = check_file(path, what, limit)
    try:
        return file_path.read_bytes()
    except OSError as error:
        raise UserError(f'{what} {path} cannot be read ({error.strerror or error})'.strip()) from error


def read_text(path: str | os.PathLike, what: str, limit: float = math.inf) -> str:
    """The content of a UTF-8 text file of at most `limit` bytes, line endings unchanged.

    Raises:
      UserError: as `read`, or it is not UTF-8.
    """
    try:
        return read(path, what, limit).decode('utf-8-sig')  # some programs begin a file with a mark
    except UnicodeDecodeError as error:
        raise UserError(f"{what} '{path}' is not UTF-8 text (byte {error.start:,}); save it as UTF-8") from error


def write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; of several processes that write it at once, one wins.

    Raises:
      OSError: it cannot be written; what was there is still there.
    """
    temporary = path.with_name(f'.{path.name}-{os.getpid()}')
    try:
        with temporary.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # names the temporary file or, on a full disk, none
            error.filename, error.filename2 = os.fspath(path), None
        raise


@contextmanager
def writing(option: str) -> Iterator[None]:
    """Says in one line what keeps a block from writing; `option` names another folder. A full disk is left to
    `errors.exit_status`.

    Raises:
      UserError: permissions, or a folder in place of a file.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        name = error.filename2 or error.filename  # the second is where something was to be moved
        raise UserError(f'cannot write {name}: {error.strerror}; choose another {option}') from error


def as_csv(fields: Sequence[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """A table as CSV under a line of its `fields`; None and NaN become empty."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator='\n')
    table.writerow(fields)
    table.writerows(['' if cell is None or cell != cell else cell for cell in row] for row in rows)
    return written.getvalue().encode()


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON value as `write` does, indented."""
    write(path, (json.dumps(value, indent=2) + '\n').encode())


def parse_json(text: bytes, what: str, advice: str = '') -> Any:
    """The JSON value of `text`.

    Raises:
      UserError: it is not valid JSON; the message begins with `what`.
    """

    def refuse(name: str) -> None:
        raise ValueError(f'{name} is not a number')

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise UserError(f'{what} is not JSON ({error}){advice}') from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      UserError: the file does not hold one.
    """
    value = parse_json(read(path), str(path))
    if not isinstance(value, dict):
        raise UserError(f'{path} holds a {type(value).__name__} instead of a JSON object')
    return value


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """`value` with its checksum: SHA-256 over its JSON with sorted keys."""
    return {**value, _SEAL: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()}


def is_sealed(value: Any) -> bool:
    """Whether `value` was sealed by `seal` and is unmodified."""
    return isinstance(value, dict) and value == seal({k: v for k, v in value.items() if k != _SEAL})
