"""Arguments of `train` that a program got wrong, before they leave a trace or end in another one's error."""

from __future__ import annotations

import errno
import inspect
import os
from contextlib import AbstractContextManager
from pathlib import Path

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError, shorten


def folder_of(folder: object) -> Path | None:
    """The folder of a run, with ~ expanded, None for no files.

    Raises:
      UserError: it is not a path, or no folder can have that name.
    """
    if folder is None:
        return None
    path = os.fspath(folder) if isinstance(folder, str | os.PathLike) else folder
    if not isinstance(path, str):
        raise UserError(f'folder={shorten(repr(folder))} is not a path; give a str or a Path, or None for no files')
    if not path:
        raise UserError(
            "folder='' would write into the current folder; name one, such as 'runs/a', or give None for no files"
        )
    path = os.fspath(file_io.expand_home(path, 'folder'))
    try:
        os.lstat(path)
    except ValueError as error:  # a null character
        raise UserError(
            f'folder={shorten(repr(path))} cannot be the name of a folder ({error}); choose another'
        ) from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UserError(f'{error.strerror}: {path}; choose a shorter one') from error
    return Path(path)


def check_interrupts(interrupts: object) -> None:
    """Raises UserError unless `interrupts` can be called without an argument."""
    if isinstance(interrupts, AbstractContextManager):  # which may be callable, as a decorator
        raise UserError('interrupts is a block already; give the function that makes it, such as interrupt.listen')
    try:
        inspect.signature(interrupts).bind()  # type: ignore[arg-type]
    except TypeError as error:
        raise UserError(
            f'interrupts={shorten(repr(interrupts))} cannot be called without an argument ({error}); give '
            'semisfl_jax.training.interrupt.listen, or leave it out'
        ) from error
    except ValueError:  # a function in C may not tell its arguments
        return


def check_listener(on_event: object) -> None:
    """Raises UserError unless `on_event` is None or can be called with an event."""
    if on_event is None:
        return
    if isinstance(on_event, AbstractContextManager):  # which may be callable, as a decorator
        raise UserError('on_event is a block that was not entered; write `with console() as show:` and give show')
    if not callable(on_event):
        raise UserError(f'on_event={shorten(repr(on_event))} cannot be called; give a function of an event, or None')
    try:
        inspect.signature(on_event).bind(object())
    except TypeError as error:
        name = getattr(on_event, '__name__', repr(on_event))
        raise UserError(
            f'on_event={shorten(name)} cannot be called with an event ({error}); give a function of one argument, such '
            'as that of `with console() as show:`'
        ) from error
    except ValueError:  # a function in C may not tell its arguments
        return
