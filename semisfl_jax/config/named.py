"""A configuration from Python: by name, with changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.config import command_line, keys, kinds, presets, sources
from semisfl_jax.core.errors import UserError, shorten


def get_config(
    name: str | os.PathLike[str], changes: Mapping[str, Any] | ConfigDict | None = None, **others: Any
) -> ConfigDict:
    """The configuration `name` with changes, as `--config=NAME --config.KEY=VALUE` gives it.

    Args:
      name: of one that comes with the package, 'digits' or 'digits:code', or the path of a file.
      changes: values by key, dots between the parts of a key: {'federation.alpha': 0.5}.
      others: the same for keys without a dot, or with two underscores in its place: rounds=50, federation__alpha=0.5.

    Returns:
      The configuration, not locked. With `setting='official'`, the values of the method's papers are in it.

    Raises:
      UserError: there is no such configuration or key, or a value has the wrong type.
    """
    if not isinstance(name, str | os.PathLike):
        raise UserError(f"{shorten(repr(name))} is not the name of a configuration; write get_config('digits')")
    if not isinstance(changes, Mapping | ConfigDict | None):
        raise UserError(
            f"{shorten(repr(changes))} in place of a dictionary of changes; write get_config('digits', "
            "algorithm='fedavg') or get_config('digits', {'algorithm': 'fedavg'})"
        )
    file, colon, settings = os.fspath(name).partition(':')
    config = sources.load(command_line.find(file), settings if colon else None)
    given = {**(changes or {}), **{key.replace('__', '.'): value for key, value in others.items()}}
    types, optional = kinds.of(config), kinds.optional()
    for key, value in given.items():
        if key not in types:
            raise UserError(keys.unknown(key, types, ' of this configuration'))
        value = _plain(value)
        kinds.check_value(key, value, types[key], may_be_none=key in optional)
        config.update_from_flattened_dict({key: value})
    presets.apply(config, given=given.keys())
    return config


def _plain(value: Any) -> Any:
    """Numbers of NumPy and ranges, as loops over settings give them, in the types of a configuration."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(value) if isinstance(value, range) else value
