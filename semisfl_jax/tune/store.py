"""Writes the choices that `config.tuned` reads."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semisfl_jax import own_files
from semisfl_jax.config import tuned
from semisfl_jax.config.tuned import Choice
from semisfl_jax.errors import UserError


def add(choice: Choice) -> None:
    """Stores a choice in place of an earlier one for the same device, version and settings.

    Raises:
      UserError: the file is broken or cannot be written.
    """
    with _held():
        others = [other for other in tuned.read() if other.place != choice.place]
        own_files.write_json(tuned.file(), tuned.as_json([*others, choice]))


def forget(which: Callable[[Choice], bool]) -> int:
    """Removes the choices of which `which` is true; returns how many there were.

    Raises:
      UserError: as `add`.
    """
    with _held():
        choices = tuned.read()
        kept = [choice for choice in choices if not which(choice)]
        if len(kept) < len(choices):
            own_files.write_json(tuned.file(), tuned.as_json(kept))
        return len(choices) - len(kept)


def clear() -> None:
    """Removes the file, whatever it holds.

    Raises:
      UserError: it cannot be removed.
    """
    with _held():
        tuned.file().unlink(missing_ok=True)


@contextmanager
def _held() -> Iterator[None]:
    """Locks out others that write: what they store in the meantime would be lost."""
    path = tuned.file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix('.lock').open('w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise UserError(f'cannot write {path} ({error.strerror}); set XDG_CACHE_HOME to a folder of yours') from error
