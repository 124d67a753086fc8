"""Federated methods. Each is one record (`Method`), registered by its own file in this folder.

External methods work the same way from any other file: define a `Method` and call `register`.
"""

import importlib
import pkgutil

from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.registry import METHODS, build, get, register
from semisfl_jax.core.keys import key as option

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f'{__name__}.{_module.name}')

__all__ = ['METHODS', 'Look', 'Method', 'build', 'get', 'option', 'register']
