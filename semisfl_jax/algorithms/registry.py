"""All methods, by name: where a record is checked and kept, and a method is built from it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping

from semisfl_jax.algorithms import ranges as ranges_lib
from semisfl_jax.algorithms.method import FEATURES, SERVER, Method
from semisfl_jax.algorithms.options import check_option
from semisfl_jax.core import sampling
from semisfl_jax.core.errors import UserError, found, use_one_of
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views
from semisfl_jax.models import SplitModel

METHODS: dict[str, Method] = {}  # by name; `register` adds to it
_OURS = 'semisfl_jax.algorithms.'


def register(method: Method) -> Method:
    """Registers a method under its name, for configurations, commands, costs, figures and studies.

    An external method may be registered again, as when a notebook cell is run twice; built-in methods cannot be
    replaced.

    Raises:
      ValueError: an inconsistent record, or a name or group that is already taken.
    """
    if not isinstance(method, Method):
        raise ValueError(f'register: {found(method)} is not a method; give a Method(name, build, ...)')
    for fault_of in _FAULTS:
        if fault := fault_of(method):
            raise ValueError(f"method '{method.name}': {fault}")
    METHODS[method.name] = method
    return method


def get(name: str) -> Method:
    """The method `name`.

    Raises:
      UserError: an unknown name.
    """
    if name not in METHODS:
        raise UserError(f"algorithm='{name}' is unknown; {use_one_of(name, METHODS)}")
    return METHODS[name]


def build(name: str, model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """The method `name`, with default options if `hparams` has none.

    Raises:
      UserError: an unknown name, or a method that builds no Algorithm.
    """
    method = get(name)
    if hparams.options is None and method.options:
        hparams = dataclasses.replace(hparams, options=method.options())
    built = method.build(model, views, hparams, axis)
    if not isinstance(built, Algorithm):
        raise UserError(
            f"method '{name}': build returns {found(built)}; return Algorithm(init, round, predict, headline)"
        )
    for field in ('init', 'round', 'predict'):
        if not callable(function := getattr(built, field)):
            raise UserError(f"method '{name}': {field} of its Algorithm is {found(function)}; give a function")
    return built


def option_groups() -> dict[str, type]:
    """The options of all methods, by group."""
    return {method.option_group: method.options for method in METHODS.values() if method.options}


def option_fields() -> dict[str, dataclasses.Field]:
    """The options of all methods by key, such as 'fedmatch.helpers', with defaults and the metadata from `option`."""
    return {key: field for method in METHODS.values() for key, field in _fields_of(method).items()}


def is_ours(method: Method) -> bool:
    """Whether it is a method of this package; what `exec` defines has no module."""
    return (method.build.__module__ or '').startswith(_OURS)


# --- what is wrong with a record, '' if nothing; each may rely on those before it in _FAULTS


def _wrong_name(method: Method) -> str:
    if isinstance(method.name, str) and method.name.isidentifier():
        return ''
    return "a name has letters, digits and underscores, as in 'my_method'"


def _wrong_build(method: Method) -> str:
    return '' if callable(method.build) else f'build={method.build}; give the function that builds the method'


def _wrong_kind(method: Method) -> str:
    """A field that is not of the kind that it has in the record."""
    for field in ('uses', 'needs', 'metrics', 'ranges', 'variants'):
        kind, name = (tuple | list, 'tuple') if field == 'uses' else (Mapping, 'dict')
        if not isinstance(value := getattr(method, field), kind):
            return f'{field} is {found(value)}; give a {name}, or leave it out'
    for field in ('labels_alone', 'sequential', 'check', 'price'):
        value = getattr(method, field)
        if not callable(value) and not (field == 'price' and value is None):
            return f'{field} is {found(value)}; give a function, or leave it out'
    return ''


def _taken_name(method: Method) -> str:
    existing = METHODS.get(method.name)
    if existing and is_ours(existing) and existing.build is not method.build:
        return 'the package has a method of that name; choose another name'
    return ''


def _unknown_feature(method: Method) -> str:
    for name in method.uses:
        if name not in FEATURES:
            return f"'{name}' in uses is not a feature; {use_one_of(name, FEATURES)}"
    return ''


def _unknown_choice(method: Method) -> str:
    for field, values in {'reads': sampling.READS, 'server': SERVER, 'steps': sampling.STEPS}.items():
        if (value := getattr(method, field)) not in values:
            return f"{field}='{value}'; use one of {', '.join(values)}"
    return ''


def _wrong_options(method: Method) -> str:
    if method.options is None:
        return ''
    parameters = getattr(method.options, '__dataclass_params__', None)
    if parameters and parameters.frozen and all(field.metadata for field in dataclasses.fields(method.options)):
        return ''
    return 'options must be a frozen dataclass whose fields are made with `option`'


def _taken_group(method: Method) -> str:
    owner = next((other for other in METHODS.values() if other.option_group == method.option_group != ''), None)
    if owner and owner.name != method.name and owner.options is not method.options:
        return f'config.{method.option_group} holds the options of {owner.name}'
    return ''


def _reserved_group(method: Method) -> str:
    """A group of a user's method that is a key of every configuration: one would overwrite the other."""
    if method.options is None or is_ours(method):
        return ''
    config = importlib.import_module('semisfl_jax.configs.default').get_config()
    if method.option_group not in config.keys() - option_groups().keys():
        return ''
    return f'config.{method.option_group} is a key of every configuration; choose another group for the options'


def _wrong_default(method: Method) -> str:
    """An option's default out of its own range: every run would be refused for it, those of other methods, too."""
    for key, field in _fields_of(method).items():
        try:
            check_option(key, field, field.default)
        except UserError as error:
            return f'the default of an option: {error}'
    return ''


def _wrong_range(method: Method) -> str:
    """A range of a key that the method does not read, or with values that the key cannot have."""
    unread = {key: name for name, keys in FEATURES.items() if name not in method.uses for key in keys}
    options = _fields_of(method)
    defaults = {key: field.default for key, field in options.items()}
    for key, range_ in method.ranges.items():
        if fault := ranges_lib.fault(key, range_, unread, defaults):
            return f'ranges has {key}: {fault}'
        for value in range_.ends if key in options else ():
            try:
                check_option(key, options[key], value)
            except UserError as error:
                return f'ranges: {error}'
    return ''


def _fields_of(method: Method) -> dict[str, dataclasses.Field]:
    """The options of a method by key."""
    fields = dataclasses.fields(method.options) if method.options else ()
    return {f'{method.option_group}.{field.name}': field for field in fields}


_FAULTS = (
    _wrong_name,
    _wrong_build,
    _wrong_kind,
    _taken_name,
    _unknown_feature,
    _unknown_choice,
    _wrong_options,
    _taken_group,
    _reserved_group,
    _wrong_default,
    _wrong_range,
)
