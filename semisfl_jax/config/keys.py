"""Which keys a configuration has: exactly those of configs/default.py.

A resolved configuration has only its own method's options.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax.core.errors import UserError, nearest

# Keys that came after runs had been made, and the defaults that stand for them in the files of those runs. At its
# default such a key is not part of what identifies an experiment, so that folders keep their names.
ADDED: Mapping[str, Any] = {
    'data.eval_split': 'test',
    'data.num_validation': 0,
    'model.recompute': False,
    'pseudo_labels': 'method',
    'failures.trace_hash': '',
}

AUTO = 'auto'  # leaves a key to the method, or to the machine
MANY_RUNS = {'study': 'studies', 'sweep': 'sweeps'}  # what begins the keys of configurations of many runs


def completed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flat configuration, possibly from a file, with the keys that it is too old to have."""
    return {**ADDED, **flat}


def check(given: Collection[str], optional: Collection[str] = ()) -> None:
    """Checks the names of a flat configuration, whose keys are dotted.

    Args:
      given: its keys.
      optional: keys that may be missing.

    Raises:
      UserError: a key that nothing reads, which a program may have set by mistake, or a missing one.
    """
    known_keys = defaults()
    for key in given:
        if key not in known_keys:
            raise UserError(unknown(key, known_keys))
    for key in known_keys:
        if key not in given and key not in optional:
            raise UserError(f'config.{key} is missing; configs/default.py has its default and its meaning')


def unknown(key: object, known: Collection[str], where: str = '') -> str:
    """What to say about a key that does not exist, with the one that was probably meant.

    Args:
      key: what was given, which in a program need not be a string.
      known: the keys that exist.
      where: they do, such as ' of this configuration'.
    """
    inside = next((name for name in known if name.startswith(f'{key}.')), '')
    if inside:
        return f'config.{key} is a group of keys; set one of them, such as config.{inside}'
    for kind, plural in MANY_RUNS.items():
        if str(key).startswith(f'{kind}_') and not any(name.startswith(f'{kind}_') for name in known):
            return f'config.{key} belongs to {plural}; leave it out, or give one of configs/{plural}'
    name = nearest(str(key), known, cutoff=0.5)
    hint = f'did you mean config.{name}?' if name else 'configs/default.py lists all keys'
    return f'config.{key} is not a key{where}; {hint}'


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """The dotted keys of a configuration, or of one read from a file, and their values.

    {'data': {'name': 'digits'}} -> {'data.name': 'digits'}
    """
    values: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, ConfigDict | dict)
        values |= flat(value, f'{prefix}{key}.') if inner else {f'{prefix}{key}': value}
    return values


def defaults() -> dict[str, Any]:
    """Keys of configs/default.py and their values, with the options of all methods registered so far."""
    return flat(importlib.import_module('semisfl_jax.configs.default').get_config())
