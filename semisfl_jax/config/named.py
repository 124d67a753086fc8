"""A configuration from Python: by name, with changes."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax.config import command_line, keys, presets
from semisfl_jax.errors import UserError


def get_config(name: str, changes: dict[str, Any] | None = None, **others: Any) -> ConfigDict:
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
    file, colon, settings = name.partition(':')
    path = command_line.find(file)
    loader = SourceFileLoader(f'semisfl_jax_configuration_{path.stem}', str(path))  # whatever the file is called
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    config = module.get_config(settings) if colon else module.get_config()
    given = {**(changes or {}), **{key.replace('__', '.'): value for key, value in others.items()}}
    values = keys.flat(config)
    for key, value in given.items():
        if key not in values:
            raise UserError(f'config.{key} is not a key of this configuration; {keys.meant(key, values)}')
        try:
            config.update_from_flattened_dict({key: value})
        except (TypeError, ValueError) as error:
            kind = type(values[key]).__name__
            raise UserError(f'config.{key}={value!r}: the value must be of type {kind}') from error
    presets.apply(config, given=given.keys())
    return config
