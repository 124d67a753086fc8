"""The keys of a configuration: those of `schema` and the options of all methods registered so far.

A resolved configuration has only its own method's options.
"""

import functools
import math
import textwrap
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict, config_dict

from semisfl_jax import algorithms
from semisfl_jax.algorithms.registry import option_fields, option_groups
from semisfl_jax.base.errors import UserError, nearest, shorten, with_article
from semisfl_jax.base.keys import Field, range_of
from semisfl_jax.config import metric_help, schema

SYNONYMS = {  # another name of a key -> the key
    'learning_rate': 'lr',
    'alpha': 'federation.alpha',
    'clients': 'federation.num_clients',
    'active': 'federation.num_active',
    'epochs': 'local.epochs',
    'iterations': 'k_u',
    'method': 'algorithm',
    'dataset': 'data.name',
    'labels': 'data.num_labeled',
    'tau': 'threshold',
}
_NONE = type(None)
TYPES = {bool: 'True or False', int: 'a whole number', float: 'a number', str: 'a str', tuple: 'a tuple or a list'}
LARGEST = float(np.finfo(np.float32).max)
_HOLD_NAMES = ('data.tasks', 'cost.devices', 'official_keys')  # lists of str; other lists have checks of their own


def fields() -> dict[str, Field]:
    """Returns every dotted key with its field: its default and the metadata of `base.keys.key`.

    Raises:
      UserError: a user's method has options in a group that every configuration has.
    """
    if taken := option_groups().keys() & {key.partition('.')[0] for key in schema.KEYS}:
        group = taken.pop()
        raise UserError(f"config.{group} is in every configuration; choose another group for a method's options")
    return {**schema.KEYS, **option_fields()}


def added() -> dict[str, Any]:
    """Returns the keys that came after runs had been made, with what those runs did: their defaults, as in JSON."""
    return {key: as_json(field.default) for key, field in fields().items() if field.metadata['added']}


def default_config() -> ConfigDict:
    """Returns a configuration in which every key has its default."""
    nested: dict[str, Any] = {}
    for key, field in fields().items():
        group, _, name = key.rpartition('.')
        values = nested.setdefault(group, {}) if group else nested
        values[name] = config_dict.placeholder(int) if key == 'model.split_index' else field.default
    return ConfigDict(nested)


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Flattens a configuration, or one read from a file, to values by dotted key.

    {'data': {'name': 'digits'}} -> {'data.name': 'digits'}

    Args:
      config: the configuration.
      prefix: put before every key.
    """
    values: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, ConfigDict | dict)
        values |= flat(value, f'{prefix}{key}.') if inner else {f'{prefix}{key}': value}
    return values


def as_json(value: Any) -> Any:
    """Returns a value as it is in a config.json, where a tuple becomes a list."""
    return list(value) if isinstance(value, tuple) else value


# --- names


def check_names(given: Mapping[str, Any]) -> None:
    """Checks the keys of a flat configuration, which needs no options but those of its method.

    Raises:
      UserError: a key that nothing reads, which a program may have set by mistake, or a missing one.
    """
    known, options = fields(), option_fields()
    for key in given:
        if key not in known:
            raise UserError(unknown(key, known))
    name = given.get('algorithm')
    method = algorithms.METHODS.get(name) if isinstance(name, str) else None
    for key in [key for key in known if key not in given]:
        if key not in options:
            raise UserError(f'config.{key} is missing; --help {key} says its default and its meaning')
        if method and key.partition('.')[0] == method.option_group:
            raise UserError(f'config.{key} is missing; make the configuration after register(METHOD)')


def unknown(key: object, known: Iterable[str], where: str = '') -> str:
    """Words the error for an unknown key.

    Args:
      key: the key.
      known: the keys that exist.
      where: where they exist: ' of this configuration'.
    """
    known = list(known)
    inside = next((name for name in known if name.startswith(f'{key}.')), '')
    if inside:
        return f'config.{key} is a group of keys; set one of them, such as config.{inside}'
    name = meant(str(key), known)
    hint = f'did you mean config.{name}?' if name else 'see config/schema.py, core/hparams.py, docs/options.md'
    return f'config.{key} is not a key{where}; {hint}'


def meant(word: str, known: Iterable[str]) -> str:
    """Returns the key that `word` probably means, by a synonym or by its last part; '' if that is not clear.

    Args:
      word: the unknown key.
      known: the keys that exist.
    """
    known, last = list(known), word.rpartition('.')[2].lower()
    if SYNONYMS.get(last) in known:
        return SYNONYMS[last]
    by_last: dict[str, list[str]] = {}
    for name in known:
        by_last.setdefault(name.rpartition('.')[2], []).append(name)
    for names in by_last.get(last, []), by_last.get(nearest(last, by_last, cutoff=0.82), []):
        if len(names) == 1:
            return names[0]
    return nearest(word, known, cutoff=0.82)


# --- types


def types(config: ConfigDict) -> dict[str, type]:
    """Returns the type of every dotted key of a configuration, by the table or, if it has no such key, by its value."""
    known = fields()
    return {key: type_of(key, known[key]) if key in known else type(value) for key, value in flat(config).items()}


def check_type(key: str, value: Any, kind: type, may_be_none: bool = False) -> None:
    """Checks the type of one value.

    A ConfigDict made from a dictionary, such as a config.json, does not check it.

    Args:
      key: the dotted key.
      value: its value.
      kind: the type of the key; NoneType for any.
      may_be_none: allows None.

    Raises:
      UserError: the value has another type, or is a number that is not finite in float32.
    """
    if not _fits(value, kind) and not (value is None and may_be_none):
        is_ = 'has no value' if value is None else f'is {with_article(type(value).__name__)}'
        wanted = TYPES.get(kind, with_article(kind.__name__)) + (' or None' if may_be_none else '')
        if key == 'seeds' and isinstance(value, int):
            wanted += f', for {value} seeds tuple(range({value}))'
        raise UserError(f'config.{key}={shorten(repr(value))} {is_}; use {wanted}')
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f'config.{key}={value} must be a finite number')
    if isinstance(value, float) and abs(value) > LARGEST:
        raise UserError(f'config.{key}={value} is beyond {LARGEST:.2g}, the largest float32; use a smaller number')
    if key in _HOLD_NAMES and (wrong := [name for name in value if not isinstance(name, str)]):
        raise UserError(f'config.{key} holds {shorten(repr(wrong[0]))}, which is not a str; use names')


def type_of(key: str, field: Field) -> type:
    """Returns the type of a key: that of its default; int for a key of `schema` that may be None.

    An option whose default is None has the type NoneType, which stands for any.
    """
    return int if field.default is None and key in schema.KEYS else type(field.default)


def _fits(value: Any, kind: type) -> bool:
    if isinstance(value, bool):  # bool is a subclass of int
        return kind in (bool, _NONE)
    others: dict[Any, Any] = {float: int | float, tuple: tuple | list, list: tuple | list, _NONE: object}
    return isinstance(value, others.get(kind, kind))


# --- help


def values(field: Field) -> str:
    """Describes the values that a key can have; '' if its type says it."""
    return ' | '.join(field.metadata['choices']) or range_of(field)


_NO_K_S = {'needed': 'refused', 'optional': 'allowed', 'none': 'required'}  # `Method.server` -> k_s=0


def readers(key: str, field: Field) -> str:
    """Describes which methods read a key, what 'auto' is in each, and where it has no effect; '' if all is alike."""
    rule, sentences, is_option = field.metadata, [], key in option_fields()
    group, feature = key.partition('.')[0], rule['feature']
    read = [
        method
        for method in algorithms.METHODS.values()
        if (feature in method.uses if feature else method.option_group == group or not is_option)
    ]
    if is_option or feature:
        sentences.append(f'Read by {", ".join(method.name for method in read)}.')
    names: dict[str, list[str]] = {}
    for method in read:
        meaning = {**method.auto, 'k_s': _NO_K_S[method.server]}.get(key, '')
        names.setdefault(meaning, []).append(method.name)
    often = max(names, key=lambda meaning: len(names[meaning]))
    if often:
        others = (f'{meaning} in {", ".join(names[meaning])}; ' for meaning in names if meaning != often)
        sentences.append(f'{"0" if key == "k_s" else "auto"}: {"".join(others)}{often} elsewhere.')
    if rule['objectives']:
        sentences.append(f'In fedavg and fedprox, read with local.objective={" | ".join(rule["objectives"])}.')
    idle = [f'without {rule["part"]}'] if rule['part'] else []
    for other, at in rule['idle'].items():
        idle.append(f'with {other}={" | ".join(map(str, at)) if isinstance(at, tuple) else at}')
    return ' '.join([*sentences, *([f'No effect {" or ".join(idle)}.'] if idle else [])])


def help_of(word: str, files: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> str:
    """Returns the text of `--help WORD`, on a key, on all keys of a group or on a metric.

    Args:
      word: the key, group or metric; `lr` and `k_s` are a key and a metric.
      files: flat configurations by name, whose values stand beside the defaults.

    Raises:
      UserError: there is no such key or metric.
    """
    known, metrics, word = fields(), metric_help.by_key(), word.removeprefix('--').removeprefix('config.')
    texts = []
    for key, field in known.items():
        if key != word and not key.startswith(f'{word}.'):
            continue
        there = ''.join(f' (in {name}: {given[key]!r})' for name, given in files.items() if key in given)
        lines = field.metadata['help'], f'Values: {values(field)}.' if values(field) else '', readers(key, field)
        texts.append(_entry(f'config.{key} = {field.default!r}{there}', lines))
    if metric := metrics.get(word):
        texts.append(_entry(f'metric {word}', (metric.meaning, f'In {metric.where}.')))
    if not texts:
        if not meant(word, known) and (name := nearest(word, metrics, cutoff=0.82)):
            raise UserError(f"'{word}' is neither a key nor a metric; did you mean {name}?")
        raise UserError(unknown(word, known))
    return '\n'.join(texts)


def _entry(head: str, lines: Iterable[str]) -> str:
    """Puts lines that are not empty below a head, wrapped and indented."""
    fill = functools.partial(textwrap.fill, width=118, initial_indent='  ', subsequent_indent='  ')
    return ''.join(f'{line}\n' for line in (head, *(fill(line) for line in lines if line)))
