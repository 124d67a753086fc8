"""Loads configurations from a file of the package or of a user, and applies the 'official' setting."""

import importlib.util
import inspect
import os
import sys
from collections.abc import Collection, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from semisfl_jax import algorithms, configs
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, nearest, with_article
from semisfl_jax.config import keys

CONFIGS = Path(*configs.__path__)  # configurations shipped with the package
BEGAN = '_began'  # attribute of a configuration: the values by dotted key that its file gives, before any change


def get_config(
    name: str | os.PathLike[str], changes: Mapping[str, Any] | ConfigDict | None = None, **others: Any
) -> ConfigDict:
    """Returns the configuration `name` with changes, as `--config=NAME --config.KEY=VALUE` gives it.

    Args:
      name: a configuration of the package, 'digits' or 'digits:code', or the path of a file.
      changes: values by key, dots between the parts of a key: {'federation.alpha': 0.5}.
      **others: the same for keys without a dot, or with two underscores in its place: rounds=50, federation__alpha=0.5.

    Returns:
      The configuration, not locked. With `setting='official'`, it includes the values of the method's papers.

    Raises:
      UserError: there is no such configuration or key, or a value has the wrong type.
    """
    file, colon, settings = os.fspath(name).partition(':')
    config = load_file(find(file), settings if colon else None)
    object.__setattr__(config, BEGAN, keys.flat(config))  # else it would be a key
    given = {**(changes or {}), **{key.replace('__', '.'): value for key, value in others.items()}}
    config.update_from_flattened_dict(check_changes(given, config))
    apply_setting(config, given=given.keys())
    return config


def check_changes(changes: Mapping[str, Any], config: ConfigDict) -> dict[str, Any]:
    """Checks values by dotted key and converts them to types that a configuration takes.

    Args:
      changes: values by dotted key.
      config: the configuration to change.

    Raises:
      UserError: the configuration has no such key, or the value has another type.
    """
    types, known, values = keys.types(config), keys.fields(), {}
    for key, value in changes.items():
        if key not in types:
            raise UserError(keys.unknown(key, types, ' of this configuration'))
        if isinstance(value, np.generic):  # from loops over NumPy arrays
            value = value.item()
        elif isinstance(value, range):
            value = tuple(value)
        keys.check_type(key, value, types[key], may_be_none=key in known and known[key].default is None)
        values[key] = value
    return values


def with_values(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """Returns a copy of a configuration with other values by dotted key.

    Raises:
      UserError: as `check_changes`, or the values of papers would be those of another method.
    """
    if 'setting' in values or ('algorithm' in values and config.get('setting') == 'official'):
        why = "each method has its own values with setting='official'"
        raise UserError(f'{why}; make a configuration of each by get_config, or give the grid to the command')
    changed = config.copy_and_resolve_references().unlock()
    changed.update_from_flattened_dict(check_changes(values, changed))
    return changed


# --- files


def find(given: str) -> Path:
    """Finds the file of a configuration, given by path or by the name of one shipped with the package.

    Raises:
      UserError: no such file exists.
    """
    path = file_io.expand_home(given, '--config')
    if os.path.isfile(path):  # unlike Path.is_file, returns False for an overlong name
        return path
    packaged = CONFIGS / f'{given.removeprefix("configs/").removesuffix(".py")}.py'
    if os.path.isfile(packaged) and packaged.stem != '__init__' and '..' not in given:
        return packaged
    if os.path.isfile(f'{path}.py'):
        return Path(f'{path}.py')
    files = sorted(CONFIGS.rglob('*.py'), key=lambda file: -len(file.parts))  # of two namesakes, the upper one counts
    files = [file for file in files if 'def get_config' in file.read_text()]
    names = {file.stem: file.relative_to(CONFIGS).with_suffix('') for file in files}
    hint = f'did you mean {names[name]}?' if (name := nearest(path.stem, names)) else 'see configs/ for those available'
    raise UserError(f'there is no configuration file {path}; {hint} (see --help)')


def load_file(path: Path, settings: str | None) -> ConfigDict:
    """Returns the configuration that get_config() of a file returns.

    Args:
      path: the file.
      settings: the argument of get_config(), which follows the colon; None if there is none.

    Raises:
      UserError: it has no get_config(), or one that takes other arguments or returns no configuration.
    """
    function = getattr(run_file(path), 'get_config', None)
    if not callable(function):
        raise UserError(f'{path} has no get_config(); a configuration is a Python file with get_config()')
    arguments = () if settings is None else (settings,)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        wrong = f"takes no settings; leave out ':{settings}'" if arguments else 'needs settings; write FILE:SETTINGS'
        raise UserError(f'{path}: get_config() {wrong}') from error
    config = function(*arguments)
    if not isinstance(config, ConfigDict) or isinstance(config, FrozenConfigDict):
        what = 'None' if config is None else with_article(type(config).__name__)
        raise UserError(f'{path}: get_config() returned {what}; it must end with `return config`, a ConfigDict')
    return config


def run_file(path: Path) -> ModuleType:
    """Runs a Python file, which may import modules beside it; its errors are those of any Python program.

    Raises:
      UserError: it is a file that a run wrote.
    """
    if path.suffix in ('.json', '.jsonl'):
        again = f'to resume, repeat the command of that run with --workdir={path.parent}'
        raise UserError(f'{path} was written by a run, and is not a Python file: {again}')
    loader = SourceFileLoader(f'semisfl_jax_configuration_{path.stem}', str(path))  # takes any ending
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    if (beside := str(path.parent.absolute())) not in sys.path:
        sys.path.append(beside)
    module = sys.modules[loader.name] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    loader.exec_module(module)
    return module


# --- the 'official' setting

_RULE = 'federation.partition'
_OF_RULE = (  # keys whose values only fit the rule that splits the clients' images
    'federation.alpha',
    'federation.labeled_partition',
    'federation.classes_per_client',
    'federation.min_images',
    'federation.max_images',
)


def apply_setting(config: ConfigDict, given: Collection[str] = ()) -> None:
    """Applies `config.setting` to a configuration, locked or not.

    'harmonized' changes nothing. 'official' sets the values of `algorithms.Method.official` in place; data set, model
    and number of labels stay. `official_keys` then names the keys whose values came from the papers.

    Args:
      config: changed in place.
      given: dotted keys that keep their values.

    Raises:
      UserError: the method has no 'official' setting.
    """
    if config.get('setting') != 'official':  # a user's file may lack the key; `check` says so
        return
    flat = keys.flat(config)
    official = _official(flat)
    values = {key: value for key, value in official.items() if key not in given}
    if _RULE in given and official.get(_RULE, flat[_RULE]) != flat[_RULE]:
        values = {key: value for key, value in values.items() if key not in _OF_RULE}
    with config.unlocked():
        config.update_from_flattened_dict(values)
        config.official_keys = tuple(sorted(values))


def check_setting(flat: Mapping[str, Any]) -> None:
    """Raises UserError if `setting` is 'official' but was never applied."""
    if flat['setting'] == 'official' and _official(flat) and not flat['official_keys']:
        raise UserError("config.setting='official' is set, but its values are not; call config.apply_setting(config)")


def _official(flat: Mapping[str, Any]) -> Mapping[str, Any]:
    method = algorithms.get(flat['algorithm'])
    if isinstance(method.official, str):
        why = f'{method.name} has no such setting, because {method.official}'
        raise UserError(f"config.setting='official': {why}; use 'harmonized'")
    return method.official(flat)
