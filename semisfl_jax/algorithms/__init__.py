"""Federated methods. Each file in this folder defines one as a record (`Method`) and registers it.

To add a method from outside the package, define a `Method` in any file and call `register`.
"""

import importlib
import pkgutil

from semisfl_jax.algorithms import ranges
from semisfl_jax.algorithms.method import Flat, Look, Method, Parts, protocol
from semisfl_jax.algorithms.registry import METHODS, build, get, register
from semisfl_jax.base.keys import key as option

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f'{__name__}.{_module.name}')

__all__ = ['METHODS', 'Flat', 'Look', 'Method', 'Parts', 'build', 'get', 'option', 'protocol', 'ranges', 'register']
