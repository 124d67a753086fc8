"""The options of a method: keys of the configuration that only its own runs have."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from semisfl_jax.algorithms.method import Method
from semisfl_jax.core.errors import UserError, use_one_of


def option(
    default: Any,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    idle: Mapping[str, Any] | None = None,
    ignorable: bool = False,
) -> Any:
    """A field of a method's options: a key of the configuration.

    Args:
      default: its default value, which also determines its type.
      meaning: its description, shown in docs/options.md.
      choices: the allowed values, if they are names.
      at_least, above, below: bounds of a number.
      idle: the values of other keys, one or a tuple, at which it has no effect.
      ignorable: whether runs of other methods may change it, as a data set's configuration does for this method.
    """
    bounds = {'choices': choices, 'at_least': at_least, 'above': above, 'below': below}
    readers = {'idle': idle or {}, 'ignorable': ignorable}
    return dataclasses.field(default=default, metadata={'meaning': meaning, **bounds, **readers})


def check_option(key: str, field: dataclasses.Field, value: Any) -> None:
    """Checks one value of a method's options.

    Raises:
      UserError: an unknown choice or a number out of range.
    """
    rules = field.metadata
    if rules['choices'] and value not in rules['choices']:
        raise UserError(f"config.{key}='{value}' is unknown; {use_one_of(str(value), rules['choices'])}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, above, below = rules['at_least'], rules['above'], rules['below']
        if not (math.isfinite(value) and low <= value and above < value < below):
            raise UserError(f'config.{key}={value} {_range(low, above, below)}')


def _range(at_least: float, above: float, below: float) -> str:
    lowest = 'above 0' if above == 0 else f'above {above:g}' if above > -math.inf else ''
    if at_least > -math.inf:
        lowest = f'{at_least:g} or more' if at_least <= 0 else f'at least {at_least:g}'
    if below == math.inf:
        return f'must be {lowest}' if lowest else 'must be a finite number'
    return f'must be in [{at_least:g}, {below:g})' if at_least > -math.inf else f'must be {lowest} and below {below:g}'


def options_of(method: Method, values: Mapping[str, Any]) -> Any:
    """The options of a method from a flat configuration, None if it has none."""
    if method.options is None:
        return None
    names = [field.name for field in dataclasses.fields(method.options)]
    given = {name: values[f'{method.option_group}.{name}'] for name in names}
    # JSON has no tuples
    return method.options(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
