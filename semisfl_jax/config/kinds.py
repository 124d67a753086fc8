"""Which type the value of every key has: that of its default in configs/default.py.

A ConfigDict refuses values of another type itself, but not one that was made from a dictionary, as of a config.json.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.config import keys
from semisfl_jax.core.errors import UserError, shorten, with_article

_NONE = type(None)
_WANTED = {bool: 'True or False', int: 'an int', float: 'a number', str: 'a str', tuple: 'a tuple or a list'}
LARGEST = float(np.finfo(np.float32).max)
_HOLD_NAMES = ('data.tasks', 'cost.devices', 'official_keys')  # lists; what the others hold has checks of its own


def of(config: ConfigDict, prefix: str = '') -> dict[str, type]:
    """The type of every dotted key; of one that is None without a type, that of None, which stands for any."""
    types: dict[str, type] = {}
    for key, value in config.items():
        types |= of(value, f'{prefix}{key}.') if isinstance(value, ConfigDict) else {prefix + key: config.get_type(key)}
    return types


def optional() -> set[str]:
    """The keys that may be None: those whose default is."""
    return {key for key, value in keys.defaults().items() if value is None}


def check_value(key: str, value: Any, kind: type, may_be_none: bool = False) -> None:
    """Checks the type of one value.

    Args:
      key: dotted.
      value: its value.
      kind: its type, as in `of`.
      may_be_none: whether it is in `optional`.

    Raises:
      UserError: the value has another type.
    """
    if _fits(value, kind) or (value is None and may_be_none):
        return
    is_ = 'has no value' if value is None else f'is {with_article(type(value).__name__)}'
    wanted = _WANTED.get(kind, with_article(kind.__name__)) + (' or None' if may_be_none else '')
    raise UserError(f'config.{key}={shorten(repr(value))} {is_}; use {wanted}')


def check(flat: Mapping[str, Any]) -> None:
    """Checks the types of a flat configuration whose keys exist, and that its numbers are finite.

    Raises:
      UserError: for the first value of another type.
    """
    config = importlib.import_module('semisfl_jax.configs.default').get_config()
    types, defaults = of(config), keys.flat(config)
    for key, value in flat.items():
        check_value(key, value, types[key], may_be_none=defaults[key] is None)
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f'config.{key}={value} must be a finite number')
        if isinstance(value, float) and abs(value) > LARGEST:
            raise UserError(f'config.{key}={value} is beyond {LARGEST:.2g}, the largest float32; use a smaller number')
    for key in _HOLD_NAMES:
        if wrong := [name for name in flat[key] if not isinstance(name, str)]:
            raise UserError(f'config.{key} holds {shorten(repr(wrong[0]))}, which is not a str; use names')


def _fits(value: Any, kind: type) -> bool:
    if kind is _NONE:
        return True
    if isinstance(value, bool):  # which is an int in Python
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, tuple | list if kind in (tuple, list) else kind)
