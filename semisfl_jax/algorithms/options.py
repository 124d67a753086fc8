"""The options of a method: keys of the configuration that only its own runs have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from semisfl_jax.algorithms.method import Method
from semisfl_jax.core.keys import check_value as check_option
from semisfl_jax.core.keys import key as option

__all__ = ['check_option', 'option', 'options_of']


def options_of(method: Method, values: Mapping[str, Any]) -> Any:
    """The options of a method from a flat configuration, None if it has none."""
    if method.options is None:
        return None
    names = [field.name for field in dataclasses.fields(method.options)]
    given = {name: values[f'{method.option_group}.{name}'] for name in names}
    # JSON has no tuples
    return method.options(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
