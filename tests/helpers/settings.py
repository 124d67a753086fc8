"""Configurations for tests, with a few keys changed."""

import ast
import contextlib
import functools
import importlib
import json

from ml_collections import ConfigDict

from configs import default
from semisfl_jax import algorithms
from semisfl_jax.algorithms import registry
from semisfl_jax.config import keys

NAMES = ('digits', 'mnist', 'fashion_mnist', 'cifar10', 'svhn', 'stl10', 'cinic10', 'image100')


def get(name, settings='paper'):
    return importlib.import_module(f'configs.{name}').get_config(settings)


def changed(**changes):
    """The default configuration with changes; dots in keys are written as two underscores."""
    config = default.get_config()
    config.update_from_flattened_dict({key.replace('__', '.'): value for key, value in changes.items()})
    return config


def data_options(**changes):
    """The default `config.data` with changes."""
    options = default.get_config().data
    options.update(changes)
    return options


def changes_of(words):
    """'lr=1 queue=off' -> {'lr': 1, 'queue': 'off'}"""
    changes = {}
    for key, value in (word.split('=', 1) for word in words.split()):
        changes[key] = value
        with contextlib.suppress(ValueError, SyntaxError):
            changes[key] = ast.literal_eval(value)
    return changes


def from_json(changes):
    """The default configuration as if read from a file, with changes of any type."""
    content = json.loads(default.get_config().to_json())
    for key, value in changes.items():
        *groups, name = key.split('.')
        functools.reduce(dict.get, groups, content)[name] = value
    return ConfigDict(content)


def method_reading(key):
    """Returns a method that reads a key."""
    feature, group = keys.fields()[key].metadata['feature'], key.split('.')[0]
    options = registry.option_groups()
    reads = (lambda m: m.option_group == group) if group in options else (lambda m: not feature or feature in m.uses)
    return min((m for m in algorithms.METHODS.values() if reads(m) and m.clients), key=lambda method: method.dense)
