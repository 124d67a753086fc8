"""Writes files so that a kill leaves the old or the new one, and reads the JSON files that runs write.

Anything else in their place is a one-line error that names it. A sealed object carries a checksum of its other entries,
so that later edits or damage are detected.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semisfl_jax.core import user_files
from semisfl_jax.core.errors import UserError

_SEAL = 'sha256'
_DEEPEST = 20  # levels of nesting; files of runs have at most four


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
    """Says in one line what keeps a block from writing; a full disk is left to `errors.exit_status`.

    Args:
      option: that names another folder.

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


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON value as `write` does, indented."""
    write(path, (json.dumps(value, indent=2) + '\n').encode())


def content(path: Path) -> bytes:
    """The bytes of a file. A pipe or a device, whose reader might block forever, is not opened.

    Raises:
      UserError: it is missing, not a regular file, or unreadable.
    """
    try:
        if kind := user_files.other_kind(path.stat().st_mode):
            raise UserError(f'{path} is {kind}, not a regular file')
        return path.read_bytes()
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}') from error


def parse(text: bytes, what: str) -> Any:
    """The JSON value of `text`.

    Raises:
      UserError: it is not valid JSON; the message begins with `what`.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise UserError(f'{what} is not JSON ({error})') from error
    if _depth(value) > _DEEPEST:
        raise UserError(f'{what} is nested more than {_DEEPEST} levels deep')
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      UserError: the file does not hold one.
    """
    value = parse(content(path), str(path))
    if not isinstance(value, dict):
        raise UserError(f'{path} holds {_KINDS[type(value)]} instead of a JSON object')
    return value


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """`value` with its checksum: SHA-256 over its JSON with sorted keys."""
    return {**value, _SEAL: _checksum(value)}


def is_sealed(value: Any) -> bool:
    """Whether `value` was sealed by `seal` and is unmodified."""
    return isinstance(value, dict) and value.get(_SEAL) == _checksum({k: v for k, v in value.items() if k != _SEAL})


def has_seal(value: Mapping[str, Any]) -> bool:
    """Whether `value` carries a checksum, valid or not."""
    return _SEAL in value


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    return type(value) is int or (type(value) is float and math.isfinite(value))


def set_aside(path: Path) -> Path:
    """Renames a file or folder to damaged-NAME, or damaged-NAME-COUNT if taken; returns the new path."""
    count = 0
    while os.path.lexists(target := path.with_name(f'damaged-{path.name}' + (f'-{count}' if count else ''))):
        count += 1
    return path.rename(target)


_KINDS = {
    list: 'a list',
    str: 'a string',
    int: 'a number',
    float: 'a number',
    bool: 'a boolean',
    type(None): 'null',
}


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [leaf for container in inner for leaf in container]
    return depth


def _refuse(name: str) -> None:
    raise ValueError(f'{name} is not a number')
