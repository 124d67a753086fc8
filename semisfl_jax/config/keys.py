"""Which keys a configuration has: those of configs/default.py, no more and no fewer.

A resolved configuration has the options of its own method alone.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax.errors import UserError
from semisfl_jax.wording import nearest

DEFAULT = Path(__file__).parents[2] / 'configs' / 'default.py'


def check(given: Collection[str], optional: Collection[str] = ()) -> None:
    """Checks the names of a flat configuration, dots between the parts of a key.

    Args:
      given: its keys.
      optional: keys that may be missing.

    Raises:
      UserError: a key that nothing reads, which a program may have set by mistake, or one that is missing.
    """
    known = defaults()
    for key in given:
        if known and key not in known:
            raise UserError(f'config.{key} is not a key; {meant(key, known)}')
    for key in known:
        if key not in given and key not in optional:
            raise UserError(f'config.{key} is missing; configs/default.py has its default and its meaning')


def meant(key: str, known: Collection[str]) -> str:
    """What to do about a key that there is not."""
    name = nearest(key, known, cutoff=0.5)
    return f'did you mean config.{name}?' if name else 'configs/default.py lists all keys'


def flat(config: ConfigDict, prefix: str = '') -> dict[str, Any]:
    """The keys of a configuration, dots between their parts, and their values."""
    found = {}
    for key, value in config.items():
        found |= flat(value, f'{prefix}{key}.') if isinstance(value, ConfigDict) else {prefix + key: value}
    return found


def defaults() -> dict[str, Any]:
    """Keys of configs/default.py and their values, with the options of all methods that are known by now; none where
    the package was installed without the file, unchecked then."""
    return flat(_module().get_config()) if DEFAULT.is_file() else {}


@functools.cache
def _module() -> ModuleType:
    """Found beside the package, for a program may have a package `configs` of its own."""
    spec = importlib.util.spec_from_file_location('semisfl_jax_default_configuration', DEFAULT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
