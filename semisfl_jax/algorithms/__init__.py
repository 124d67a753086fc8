"""Federated methods. Each is one record (`Method`), registered by its own file in this folder.

External methods work the same way from any other file: define a `Method` and call `register`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

from semisfl_jax.algorithms.method import (
    METHODS,
    Look,
    Method,
    get,
    option,
    register,
)
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import HParams
from semisfl_jax.models import SplitModel
from semisfl_jax.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views
from semisfl_jax.wording import found

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f'{__name__}.{_module.name}')


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


__all__ = ['METHODS', 'Look', 'Method', 'build', 'get', 'option', 'register']
