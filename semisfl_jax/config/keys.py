"""The keys of a configuration: those of configs/default.py and the options of all methods registered so far.

A resolved configuration has only its own method's options.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from semisfl_jax import algorithms
from semisfl_jax.algorithms.registry import option_fields
from semisfl_jax.configs import default
from semisfl_jax.core.errors import UserError, nearest, shorten, with_article
from semisfl_jax.core.keys import Field, choices_of, range_of, rules

# Keys that came after runs had been made, and the defaults that stand for them in the files of those runs. At its
# default such a key is not part of what identifies an experiment, so that folders keep their names.
ADDED: Mapping[str, Any] = {
    'data.eval_split': 'test',
    'data.images_of_tasks': [],
    'data.num_validation': 0,
    'model.recompute': False,
    'pseudo_labels': 'method',
    'failures.trace_hash': '',
}

AUTO = 'auto'  # leaves a key to the method, or to the machine
SYNONYMS = {  # what else a key is called -> the key
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
_TYPES = {bool: 'True or False', int: 'an int', float: 'a number', str: 'a str', tuple: 'a tuple or a list'}
LARGEST = float(np.finfo(np.float32).max)
_HOLD_NAMES = ('data.tasks', 'cost.devices', 'official_keys')  # lists; what the others hold has checks of its own


def fields() -> dict[str, Field]:
    """Every key, dotted, with what is said of it: its default and the metadata of `core.keys.key`."""
    return {**default.KEYS, **option_fields()}


def defaults() -> dict[str, Any]:
    """Every key, dotted, and its default."""
    return {key: field.default for key, field in fields().items()}


def flat(config: ConfigDict | Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """The dotted keys of a configuration, or of one read from a file, and their values.

    {'data': {'name': 'digits'}} -> {'data.name': 'digits'}
    """
    values: dict[str, Any] = {}
    for key, value in config.items():
        inner = isinstance(value, ConfigDict | dict)
        values |= flat(value, f'{prefix}{key}.') if inner else {f'{prefix}{key}': value}
    return values


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
    """What to say about a key that is not among the `known` ones, which exist `where`: ' of this configuration'."""
    known = list(known)
    inside = next((name for name in known if name.startswith(f'{key}.')), '')
    if inside:
        return f'config.{key} is a group of keys; set one of them, such as config.{inside}'
    name = meant(str(key), known)
    hint = f'did you mean config.{name}?' if name else 'configs/default.py and docs/options.md list all keys'
    return f'config.{key} is not a key{where}; {hint}'


def meant(word: str, known: Iterable[str]) -> str:
    """The key that was probably meant, '' if that is not clear: by another name of it, or by its last part."""
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
    """The type of every dotted key; of one that is None without a type, that of None, which stands for any."""
    return {key: config_path.get_type(key, config) for key in flat(config)}


def check_type(key: str, value: Any, kind: type, may_be_none: bool = False) -> None:
    """Checks the type of one value; `kind` is that of its key, NoneType for any. A ConfigDict from a dictionary, as of
    a config.json, does not check it.

    Raises:
      UserError: the value has another type, or is a number that is not finite in float32.
    """
    if not _fits(value, kind) and not (value is None and may_be_none):
        is_ = 'has no value' if value is None else f'is {with_article(type(value).__name__)}'
        wanted = _TYPES.get(kind, with_article(kind.__name__)) + (' or None' if may_be_none else '')
        raise UserError(f'config.{key}={shorten(repr(value))} {is_}; use {wanted}')
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f'config.{key}={value} must be a finite number')
    if isinstance(value, float) and abs(value) > LARGEST:
        raise UserError(f'config.{key}={value} is beyond {LARGEST:.2g}, the largest float32; use a smaller number')
    if key in _HOLD_NAMES and (wrong := [name for name in value if not isinstance(name, str)]):
        raise UserError(f'config.{key} holds {shorten(repr(wrong[0]))}, which is not a str; use names')


def type_of(key: str, field: Field) -> type:
    """The type of a key: that of its default; of one of configs/default.py that may be None, an int."""
    return int if field.default is None and key in default.KEYS else type(field.default)


def _fits(value: Any, kind: type) -> bool:
    if isinstance(value, bool):  # which is an int in Python
        return kind in (bool, _NONE)
    others: dict[Any, Any] = {float: int | float, tuple: tuple | list, list: tuple | list, _NONE: object}
    return isinstance(value, others.get(kind, kind))


# --- help


@functools.cache
def _comments() -> dict[str, str]:
    """The comments after the keys of configs/default.py, which are their meanings."""
    groups = {section.__name__: f'{group}.' for group, section in default.GROUPS.items()}
    found: dict[str, str] = {}
    prefix, key = '', ''
    for line in inspect.getsource(default).splitlines():
        if section := re.match(r'class (\w+)', line):
            prefix, key = groups.get(section[1], ''), ''
        elif re.match(r'\S', line):
            key = ''
        elif field := re.match(r'    (\w+): ', line):
            key = prefix + field[1]
        comment = re.search(r'(?:^    |  )# (?!---)(.*)', line)
        if key and comment:
            found[key] = f'{found.get(key, "")} {comment[1]}'.strip()
    return found


def meaning(key: str, field: Field) -> str:
    """What a key is for."""
    return rules(field)['meaning'] or _comments().get(key, '')


def values(field: Field) -> str:
    """The values that a key can have, in words; '' if its type says it."""
    return ' | '.join(choices_of(field)) or range_of(field)


def readers(key: str, field: Field) -> str:
    """Which methods read a key, and where it has no effect; '' if all do everywhere."""
    rule, sentences = rules(field), []
    if key in option_fields() or rule['feature']:
        group, feature = key.partition('.')[0], rule['feature']
        methods = algorithms.METHODS.items()
        read = [name for name, each in methods if (feature in each.uses if feature else each.option_group == group)]
        sentences.append(f'Read by {", ".join(read)}.')
    if rule['objectives']:
        sentences.append(f'In fedavg and fedprox, read with local.objective={" | ".join(rule["objectives"])}.')
    idle = [f'without {rule["part"]}'] if rule['part'] else []
    for other, at in rule['idle'].items():
        idle.append(f'with {other}={" | ".join(map(str, at)) if isinstance(at, tuple) else at}')
    return ' '.join([*sentences, *([f'No effect {" or ".join(idle)}.'] if idle else [])])


def help_of(word: str) -> str:
    """What `--help KEY` shows: the default of a key, its meaning, values and readers; or the keys of a group.

    Raises:
      UserError: there is no such key.
    """
    known, word = fields(), word.removeprefix('--').removeprefix('config.')
    group = [key for key in known if key.startswith(f'{word}.')]
    if not group and word not in known:
        raise UserError(unknown(word, known))
    return '\n'.join(f'config.{key} = {known[key].default!r}\n{_described(key, known[key])}' for key in group or [word])


def _described(key: str, field: Field) -> str:
    lines = meaning(key, field), f'Values: {values(field)}.' if values(field) else '', readers(key, field)
    fill = functools.partial(textwrap.fill, width=118, initial_indent='  ', subsequent_indent='  ')
    return ''.join(f'{fill(line)}\n' for line in lines if line)
