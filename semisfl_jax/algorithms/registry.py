"""All methods, by name: where a record is checked and kept, and a method is built from it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from semisfl_jax.algorithms import ranges
from semisfl_jax.algorithms.method import FEATURES, K_S_RULES, SERVER, Method
from semisfl_jax.core import sampling
from semisfl_jax.core.errors import UserError, found, use_one_of
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.keys import check_value
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views
from semisfl_jax.models import SplitModel

METHODS: dict[str, Method] = {}  # by name; `register` adds to it


def register(method: Method) -> Method:
    """Registers a method under its name, for configurations, commands, costs, figures and studies.

    An external method may be registered again, as when a notebook cell is run twice; built-in methods cannot be
    replaced.

    Raises:
      ValueError: an inconsistent record, or a name or group that is already taken.
    """
    if not isinstance(method, Method):
        raise ValueError(f'register: {found(method)} is not a method; give a Method(name, build, ...)')
    if fault := next(_faults(method), ''):
        raise ValueError(f"method '{method.name}': {fault}")
    METHODS[method.name] = method
    return method


def get(name: str) -> Method:
    """The method `name`; UserError if it is unknown."""
    if name not in METHODS:
        raise UserError(f"algorithm='{name}' is unknown; {use_one_of(name, METHODS)}")
    return METHODS[name]


def build(name: str, model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """The method `name`, with default options if `hparams` has none; UserError if it is unknown or no Algorithm."""
    method = get(name)
    if hparams.options is None and method.options:
        hparams = dataclasses.replace(hparams, options=method.options())
    built = method.build(model, views, hparams, axis)
    if not isinstance(built, Algorithm):
        use = 'return Algorithm(init, round, predict, headline)'
        raise UserError(f"method '{name}': build returns {found(built)}; {use}")
    return built


def options_of(method: Method, values: Mapping[str, Any]) -> Any:
    """The options of a method from a flat configuration, None if it has none."""
    if method.options is None:
        return None
    given = {field.name: values[key] for key, field in _fields_of(method).items()}
    # JSON has no tuples
    return method.options(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def option_groups() -> dict[str, type]:
    """The options of all methods, by group."""
    return {method.option_group: method.options for method in METHODS.values() if method.options}


def option_fields() -> dict[str, dataclasses.Field]:
    """The options of all methods by key, such as 'fedmatch.helpers', with defaults and the metadata from `option`."""
    return {key: field for method in METHODS.values() for key, field in _fields_of(method).items()}


def is_ours(method: Method) -> bool:
    """Whether it is a method of this package; what `exec` defines has no module."""
    return (method.build.__module__ or '').startswith(__package__ + '.')


def _faults(method: Method) -> Iterator[str]:
    """What is wrong with a record; the first fault counts, as the later checks rely on the earlier ones."""
    existing, group = METHODS.get(method.name), method.option_group
    for name in (method.name, method.group or method.name):
        if not str(name).isidentifier():
            yield "name and group have letters, digits and underscores, as in 'my_method'"
    if not callable(method.build):
        yield f'build is {found(method.build)}; give a function (model, views, hparams, axis) -> Algorithm'
    if existing and is_ours(existing) and existing.build is not method.build:
        yield 'the package has a method of that name; choose another name'
    for name in method.uses:
        if name not in FEATURES:
            yield f"'{name}' in uses is not a feature; {use_one_of(name, FEATURES)}"
    choices = {'reads': sampling.READS, 'server': SERVER, 'steps': sampling.STEPS, 'k_s_rule': K_S_RULES}
    for name, values in choices.items():
        if (value := getattr(method, name)) not in values:
            yield f"{name}='{value}'; use one of {', '.join(values)}"
    if method.options:
        parameters = getattr(method.options, '__dataclass_params__', None)
        of_class = isinstance(method.options, type) and parameters and parameters.frozen
        if not (of_class and all(field.metadata for field in _fields_of(method).values())):
            yield 'options must be a class, a frozen dataclass whose fields are made with `option`'
        owner = next((other for other in METHODS.values() if other.option_group == group), None)
        if owner and owner.name != method.name and owner.options is not method.options:
            yield f'config.{group} holds the options of {owner.name}'
        if not is_ours(method):
            config = importlib.import_module('semisfl_jax.configs.default').get_config()
            if group in config.keys() - option_groups().keys():
                yield f'config.{group} is a key of every configuration; choose another group for the options'
    unread = {key: name for name, keys in FEATURES.items() if name not in method.uses for key in keys}
    options = _fields_of(method)
    for key, range_ in method.ranges.items():
        if fault := ranges.fault(key, range_, unread, options):
            yield f'ranges has {key}: {fault}'
    for key, field in options.items():
        ends = method.ranges[key].ends if key in method.ranges else ()
        for value in (field.default, *ends):  # a default out of range would refuse every run, those of others, too
            try:
                check_value(key, field, value)
            except UserError as error:
                yield str(error)


def _fields_of(method: Method) -> dict[str, dataclasses.Field]:
    """The options of a method by key."""
    fields = dataclasses.fields(method.options) if method.options else ()
    return {f'{method.option_group}.{field.name}': field for field in fields}
