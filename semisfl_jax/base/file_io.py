"""Reads files that users name and the JSON files that runs write, and writes files whole or not at all.

A user's file must be a regular one of plausible size: a device may never end, reading a pipe may block forever, and a
file that is too large is not the intended one. A sealed JSON object carries a checksum of its other entries, which
reveals later edits or damage.
"""

import csv
import errno
import glob
import hashlib
import io
import json
import math
import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from etils import epath

from semisfl_jax.base.errors import UserError, first_line, size, warn

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)  # only another user, or nobody, may write there
_SEAL = 'sha256'
MOST_UNPACKED = 100  # times its size: only zeros and the like compress further
_LOOK = 1  # seconds to try a lock: another process may hold it just to see whether it can


def is_remote(path: str | os.PathLike) -> bool:
    """Returns whether a path lies outside the file system: gs://BUCKET/NAME."""
    return bool(re.match(r'[A-Za-z][\w+.-]+:/', os.fspath(path)))  # a single letter is a Windows drive


def expand_home(path: str | os.PathLike, what: str) -> Path:
    """Replaces ~ or ~NAME at the beginning of a path by that home folder.

    Args:
      path: a local path.
      what: names it in messages.

    Raises:
      UserError: there is no such home folder, or the path is remote or not UTF-8.
    """
    if is_remote(path):
        raise UserError(f"{what} '{path}' is not in a file system of this machine; use a path that is, or mount it")
    whole = os.fsencode(os.path.abspath(path))
    if whole != whole.decode(errors='replace').encode():  # the C++ code of checkpoints accepts only UTF-8
        raise UserError(f'{what} {whole!r} has bytes that are not UTF-8; rename the folder, or use another one')
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{what} '{path}': no home folder of {Path(path).parts[0]}; write the whole path") from error


def check_file(path: str | os.PathLike, what: str, limit: float = math.inf) -> Path:
    """Checks that a path is a regular file, without opening it.

    Args:
      path: the file; ~ is expanded.
      what: names it in messages: 'config.failures.trace'; '' for a file of a run.
      limit: the most bytes it may have.

    Returns:
      The path; an `epath.Path`, which opens in the same way, if it is remote.

    Raises:
      UserError: it is missing, not a regular file, or too large.
    """
    name = f"{what} '{path}'" if what else path
    try:
        file = epath.Path(path) if is_remote(path) else Path(path).expanduser()
        entry: Any = file.stat()
        if is_remote(path):
            mode, length = stat.S_IFDIR if entry.is_directory else stat.S_IFREG, entry.length
        else:
            mode, length = entry.st_mode, entry.st_size
    except Exception as error:  # missing, impossible name, no home folder; libraries for remote files raise their own
        reason = getattr(error, 'strerror', None) or first_line(error)
        raise UserError(f'{name} cannot be read ({reason})' + ('; correct the path' if what else '')) from error
    if not stat.S_ISREG(mode):
        raise UserError(f'{name} is {"a folder" if stat.S_ISDIR(mode) else "not a regular file"}; use a file')
    if length > limit:
        raise UserError(f'{name} has {size(length)}, at most {size(limit)} allowed; use another file')
    return file


def read(path: str | os.PathLike, what: str = '', limit: float = math.inf) -> bytes:
    """Reads a regular file.

    Args:
      path: the file.
      what: names it in messages, as in `check_file`.
      limit: the most bytes it may have.

    Raises:
      UserError: as `check_file`, or it cannot be read.
    """
    file_path = check_file(path, what, limit)
    try:
        return file_path.read_bytes()
    except OSError as error:
        raise UserError(f'{what} {path} cannot be read ({error.strerror or error})'.strip()) from error


def read_text(path: str | os.PathLike, what: str, limit: float = math.inf) -> str:
    """Reads a UTF-8 text file, leaving line endings unchanged.

    Args:
      path: the file.
      what: names it in messages, as in `check_file`.
      limit: the most bytes it may have.

    Raises:
      UserError: as `read`, or it is not UTF-8.
    """
    try:
        return read(path, what, limit).decode('utf-8-sig')  # some programs write a byte order mark
    except UnicodeDecodeError as error:
        raise UserError(f"{what} '{path}' is not UTF-8 text (byte {error.start:,}); save it as UTF-8") from error


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a .npz, without pickles.

    Raises:
      ValueError, and whatever NumPy and zipfile raise: the file is damaged or something else, or would unpack to far
        more than its own size.
    """
    with path.open('rb') as opened, np.load(opened, allow_pickle=False) as entries:
        files = entries.zip.infolist()
        packed, unpacked = sum(file.compress_size for file in files), sum(file.file_size for file in files)
        if unpacked > MOST_UNPACKED * packed:
            raise ValueError(f'{size(packed)} would unpack to {size(unpacked)}')
        return {name: entries[name] for name in entries.files}


def write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; if several processes write it at once, one wins.

    Args:
      path: the file.
      content: its bytes.

    Raises:
      OSError: it cannot be written; its earlier content is still there.
    """
    temporary = path.with_name(f'.{path.name}-{os.getpid()}')
    try:
        with temporary.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            temporary.replace(path)
        except FileNotFoundError:  # another process has won, and deleted this file as a leftover
            if not path.exists():
                raise
        for left in path.parent.glob(f'.{glob.escape(path.name)}-*'):  # leftovers of killed processes
            left.unlink(missing_ok=True)
        sync_names(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # it names the temporary file or, on a full disk, no file
            error.filename, error.filename2 = os.fspath(path), None
        raise


def make_folder(path: Path) -> None:
    """Makes a folder and its parents, so that they outlast a power cut."""
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(exist_ok=True)
        sync_names(missing.parent)


def sync(path: Path) -> None:
    """Returns once a file, or a folder with all its content, would outlast a power cut."""
    for each in (path, *path.rglob('*')):
        if each.is_dir():
            sync_names(each)
        else:
            with each.open('r+b') as file:  # Windows syncs only files open for writing
                os.fsync(file.fileno())
    sync_names(path.parent)


def sync_names(folder: Path) -> None:
    """Returns once the names in a folder would outlast a power cut, where the system can tell."""
    with suppress(OSError):  # Windows cannot open folders, and some file systems cannot sync them
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Locked(UserError):
    """Raised when another process has a lock."""


@contextmanager
def lock(file: Path, wait: bool = False, claim: bool = False) -> Iterator[None]:
    """Locks out other processes for the duration of the block.

    Args:
      file: the lock file.
      wait: waits until the other process lets go.
      claim: refuses at once, and lets processes that the block starts without closing descriptors share the lock, so
        that it outlives this process.

    Raises:
      Locked: another process has the lock.
      UserError: the file is a link or a folder.
      OSError: the file system does not allow it.
    """
    if file.is_symlink() or file.is_dir():
        raise UserError(f'{file} is {"a link" if file.is_symlink() else "a folder"}, not a file to lock; delete it')
    with ExitStack() as stack:
        held = filelock.FileLock(file)
        try:
            with warnings.catch_warnings(action='ignore'):  # without locks in the file system, filelock gets by
                stack.enter_context(held.acquire(timeout=0 if claim else _LOOK))
        except filelock.Timeout as error:
            what = f'another process has locked {file}; wait for it, or stop it first'
            with suppress(OSError):  # the other process has just let go
                if owner := file.read_text(errors='replace').split():  # empty if the file system has locks
                    what += f'; if that, process {" on ".join(owner[:2])}, has ended, delete the file'
            if not wait:
                raise Locked(what) from error
            warn(what)
            stack.enter_context(held.acquire())
        except OSError as error:
            error.filename = os.fspath(file)  # some errors name no file
            raise
        if claim and (descriptor := held._context.lock_file_fd):  # `on_acquired` gives it on some file systems alone
            os.set_inheritable(descriptor, True)
        yield


@contextmanager
def writing(option: str) -> Iterator[None]:
    """Says in one line why the block cannot write; leaves a full disk to `errors.exit_status`.

    Args:
      option: the flag or key that names another folder.

    Raises:
      UserError: permissions, or a folder in place of a file.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        name = error.filename2 or error.filename  # filename2 is the target of a move
        raise UserError(f'cannot write {name}: {error.strerror}; choose another {option}') from error


def as_csv(fields: Sequence[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """Formats a table as CSV in UTF-8, with empty cells for None and NaN.

    Args:
      fields: the header.
      rows: cells by row.
    """
    written = io.StringIO()
    table = csv.writer(written, lineterminator='\n')
    table.writerow(fields)
    table.writerows(['' if cell is None or cell != cell else cell for cell in row] for row in rows)
    return written.getvalue().encode()


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON value, indented, as `write` does."""
    write(path, (json.dumps(value, indent=2) + '\n').encode())


def parse_json(text: bytes, what: str, advice: str = '') -> Any:
    """Parses JSON; refuses NaN and infinity.

    Args:
      text: JSON in UTF-8.
      what: begins the message.
      advice: ends the message.

    Raises:
      UserError: it is not valid JSON.
    """

    def refuse(name: str) -> None:
        raise ValueError(f'{name} is not a number')

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise UserError(f'{what} is not JSON ({error}){advice}') from error


def read_object(path: Path) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Raises:
      UserError: the file does not hold one.
    """
    value = parse_json(read(path), str(path))
    if not isinstance(value, dict):
        raise UserError(f'{path} holds a {type(value).__name__} instead of a JSON object')
    return value


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object with its checksum: SHA-256 over its JSON with sorted keys."""
    return {**value, _SEAL: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()}


def is_sealed(value: Any) -> bool:
    """Returns whether `seal` made `value` and nothing has changed it since."""
    return isinstance(value, dict) and value == seal({k: v for k, v in value.items() if k != _SEAL})
