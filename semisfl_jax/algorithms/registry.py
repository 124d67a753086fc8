"""All methods by name: checks and keeps their records, and builds a method from one."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from semisfl_jax.algorithms import ranges
from semisfl_jax.algorithms.method import FEATURES, K_S_RULES, SERVER, Method
from semisfl_jax.base.errors import UserError, describe, nearest, shorten, use_one_of
from semisfl_jax.base.keys import check_value
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core import sampling
from semisfl_jax.core.hparams import UNLABELED, HParams
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views
from semisfl_jax.models import SplitModel

METHODS: dict[str, Method] = {}  # by name; `register` adds to it


def register(method: Method) -> Method:
    """Registers a method under its name, for configurations, commands, costs, figures and studies.

    An external method may be registered again, as when a notebook cell runs twice. Built-in methods cannot be replaced.

    Args:
      method: the record.

    Returns:
      The same record.

    Raises:
      ValueError: the record is inconsistent, or its name or group is taken.
    """
    if not isinstance(method, Method):
        raise ValueError(f'register: {describe(method)} is not a method; give a Method(name, build, ...)')
    if fault := next(_faults(method), ''):
        raise ValueError(f"method '{method.name}': {fault}")
    METHODS[method.name] = method
    return method


def get(name: str) -> Method:
    """Returns the method `name`.

    Raises:
      UserError: there is no such method.
    """
    if name not in METHODS:
        bare = re.sub('^fed(avg|prox)?[-_:+]', '', name.lower())
        if objective := nearest(bare.replace('-', '_'), UNLABELED, cutoff=0.85):
            write = f'--config.algorithm=fedavg --config.local.objective={objective}'
            raise UserError(f"config.algorithm='{name}' is an objective of clients, not a method; write {write}")
        mine = 'if it is yours, import the file that registers it'
        raise UserError(f"config.algorithm='{shorten(name)}' is unknown; {use_one_of(name, METHODS)}; {mine}")
    return METHODS[name]


def build(name: str, model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds the method `name`, with default options if `hparams` has none.

    Args:
      name: value of `config.algorithm`.
      model: the model, or a tuple of `TaskModel` for dense tasks.
      views: augmentations and normalization.
      hparams: the hyper-parameters.
      axis: the clients of a round; by default, all are local.

    Returns:
      The method as pure functions.

    Raises:
      UserError: the method is unknown, or its `build` returns no Algorithm.
    """
    method = get(name)
    if hparams.options is None and method.options:
        hparams = dataclasses.replace(hparams, options=method.options())
    built = method.build(model, views, hparams, axis)
    if not isinstance(built, Algorithm):
        use = 'return Algorithm(init, round, predict, headline)'
        raise UserError(f"method '{name}': build returns {describe(built)}; {use}")
    return built


def options_of(method: Method, values: Mapping[str, Any]) -> Any:
    """Returns a method's options as an instance of its `Method.options`.

    Args:
      method: the record.
      values: a flat configuration, with the options under their keys.

    Returns:
      The options; None if the method has none.
    """
    if method.options is None:
        return None
    options = {field.name: values[key] for key, field in _fields_of(method).items()}
    # JSON has no tuples
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return method.options(**options)


def option_groups() -> dict[str, type]:
    """Returns the options class of each group, over all methods."""
    return {method.option_group: method.options for method in METHODS.values() if method.options}


def option_fields() -> dict[str, dataclasses.Field]:
    """Returns the option fields of all methods by key, such as 'fedmatch.helpers', with defaults and metadata."""
    return {key: field for method in METHODS.values() for key, field in _fields_of(method).items()}


def is_ours(method: Method) -> bool:
    """Returns True if this package defines the method; what `exec` defines has no module."""
    return (getattr(method.build, 'func', method.build).__module__ or '').startswith(__package__ + '.')


def _faults(method: Method) -> Iterator[str]:
    """Yields what is wrong with a record. Only the first fault is reported: later checks rely on earlier ones."""
    existing, group = METHODS.get(method.name), method.option_group
    for name in (method.name, method.group or method.name):
        if not str(name).isidentifier():
            yield "name and group have letters, digits and underscores, as in 'my_method'"
    if not callable(method.build):
        yield f'build is {describe(method.build)}; give a function (model, views, hparams, axis) -> Algorithm'
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
        is_frozen = isinstance(method.options, type) and parameters and parameters.frozen
        if not (is_frozen and all(field.metadata for field in _fields_of(method).values())):
            yield 'options must be a class, a frozen dataclass whose fields are made with `option`'
        owner = next((known for known in METHODS.values() if known.option_group == group), None)
        if owner and owner.name != method.name and owner.options is not method.options:
            yield f'config.{group} holds the options of {owner.name}'
    needed = {key: field.metadata['feature'] for key, field in hparams_lib.KEYS.items()}
    unread = {key: feature for key, feature in needed.items() if feature and feature not in method.uses}
    options = _fields_of(method)
    for key, range_ in method.ranges.items():
        if fault := ranges.fault(key, range_, unread, options):
            yield f'ranges has {key}: {fault}'
    for key, field in options.items():
        ends = method.ranges[key].ends if key in method.ranges else ()
        for value in (field.default, *ends):  # an invalid default would refuse every run, even those of other methods
            try:
                check_value(key, field, value)
            except UserError as error:
                yield str(error)


def _fields_of(method: Method) -> dict[str, dataclasses.Field]:
    """Returns the fields of a method's options by key."""
    fields = dataclasses.fields(method.options) if method.options else ()
    return {f'{method.option_group}.{field.name}': field for field in fields}
