"""Runs a configuration file, of the package or of a user: whatever is wrong with it becomes a one-line error."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from ml_collections import ConfigDict, FrozenConfigDict

from semisfl_jax.core.errors import UserError, first_line, with_article

_EXPECTED = 'a configuration is a Python file with get_config()'
_RUN = 'config.json'
_LIBRARIES = ('stdlib', 'platstdlib', 'purelib', 'platlib')
_INSTALLED = (Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in _LIBRARIES))


def load(path: Path, settings: str | None) -> ConfigDict:
    """What get_config() of the file `path` returns, given what follows the colon, None if there is none.

    Raises:
      UserError: it is not a Python file, has no get_config(), or fails; with the line of the file.
    """
    module = run(path)
    function = getattr(module, 'get_config', None)
    if not callable(function):
        raise UserError(_data(path) or f'{path} has no get_config(); {_EXPECTED}')
    arguments = () if settings is None else (settings,)
    _check_arguments(path, function, arguments)
    try:
        config = function(*arguments)
    except UserError:
        raise
    except Exception as error:  # of the user's code
        raise UserError(_failed(path, error)) from error
    if not isinstance(config, ConfigDict) or isinstance(config, FrozenConfigDict):
        what = 'None' if config is None else with_article(type(config).__name__)
        raise UserError(f'{path}: get_config() returned {what}; it must end with `return config`, a ConfigDict')
    return config


def run(path: Path, expected: str = _EXPECTED) -> ModuleType:
    """Runs the Python file `path`, which may import what lies beside it; `expected` says what it should be.

    Raises:
      UserError: it is no Python, or fails; with its line.
    """
    loader = SourceFileLoader(f'semisfl_jax_configuration_{path.stem}', str(path))  # whatever the file is called
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    if (beside := str(path.parent.absolute())) not in sys.path:  # what the file imports may lie beside it
        sys.path.append(beside)
    module = sys.modules[loader.name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    try:
        loader.exec_module(module)
    except UserError:
        raise
    except SyntaxError as error:
        where = f'{error.filename or path}' + (f', line {error.lineno}' if error.lineno else '')
        raise UserError(_data(path, expected) or f'{where}: {error.msg}; {expected}') from error
    except Exception as error:  # of the user's code
        raise UserError(_data(path, expected) or _failed(path, error)) from error
    return module


def _check_arguments(path: Path, function: Callable[..., object], arguments: tuple[str, ...]) -> None:
    """Raises UserError if `get_config` cannot be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        wrong = (
            f"takes no settings; leave out ':{arguments[0]}'" if arguments else 'needs settings; write FILE:SETTINGS'
        )
        raise UserError(f'{path}: get_config() {wrong}') from error


def _failed(path: Path, error: Exception) -> str:
    """Where the user's code failed, in the file `path` or in one that it imports: 'FILE, line 3: TypeError: …'."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path) or not _installed(frame.filename)]
    where = f'{own[-1].filename}, line {own[-1].lineno}' if own else str(path)
    return f'{where}: {type(error).__name__}: {first_line(error)}; correct the file'


def _installed(file: str) -> bool:
    """Whether a file is of this package, of Python or of another library, rather than the user's."""
    return file.startswith('<') or any(Path(file).is_relative_to(folder) for folder in _INSTALLED)


def _data(path: Path, expected: str = _EXPECTED) -> str:
    """What a file of JSON is, and what to do instead; '' for any other."""
    if path.name == _RUN:
        return (
            f'{path} was written by a run, and is not a Python file: to go on, repeat the command of that run with '
            f'--workdir={path.parent}, or in Python train(ml_collections.ConfigDict(json.load(open(FILE))), FOLDER)'
        )
    return f'{path} holds data; {expected}' if path.suffix in ('.json', '.jsonl') else ''
