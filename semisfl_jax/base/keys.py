"""A configuration key: a field of a dataclass with its default, meaning and allowed values.

core/hparams.py declares the keys of a round, config/schema.py all other keys of every run, each method its own options.
Checks, help, the command line, the table in the docs and warnings about keys without effect come from these.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

from semisfl_jax.base.errors import UserError, shorten, use_one_of

Field = dataclasses.Field


def key(
    default: Any,
    help: str = '',
    *,
    choices: Collection[str] = (),
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
    feature: str = '',
    part: str = '',
    objectives: tuple[str, ...] = (),
    idle: Mapping[str, Any] | None = None,
    ignorable: bool = False,
    added: bool = False,
) -> Any:
    """Declares a configuration key, as a field of a dataclass.

    Args:
      default: the default value, which also determines the type.
      help: the meaning, for `--help KEY` and docs/options.md.
      choices: the allowed values, if they are names; a dictionary if users can add some.
      at_least: lower bound of a number.
      above: lower bound that is itself not allowed.
      at_most: upper bound of a number.
      below: upper bound that is itself not allowed.
      feature: what a method must have (`Method.uses`) for its runs to change the key.
      part: what a method must have for the key to take effect: 'clients', 'memory queue' or 'projection head'.
      objectives: the values of `local.objective` that read it; other methods read it if clients train on pseudo-labels.
      idle: values of other keys, one or a tuple each, at which this key has no effect.
      ignorable: for a method's option: whether runs of other methods may change it, as a data set's configuration does.
      added: whether there were runs before the key, which did what its default says. At the default it is left out of
        the identity of an experiment, so their folders keep their names.

    Returns:
      The field.
    """
    bounds = {'at_least': at_least, 'above': above, 'at_most': at_most, 'below': below}
    readers = {'feature': feature, 'part': part, 'objectives': objectives, 'idle': idle or {}, 'ignorable': ignorable}
    rules = {'help': help, 'choices': choices, **bounds, **readers, 'added': added}
    return dataclasses.field(default=default, metadata=rules)


def declared(record: type, group: str = '') -> dict[str, Field]:
    """Returns the keys that a dataclass declares, the fields made by `key`.

    Args:
      record: the dataclass.
      group: put before each name, with a dot; '' for keys without a group.
    """
    prefix = f'{group}.' if group else ''
    return {f'{prefix}{field.name}': field for field in dataclasses.fields(record) if field.metadata}


def check_value(name: str, field: Field, value: Any) -> None:
    """Checks a value that already has the key's type.

    Args:
      name: the key, for the message.
      field: its field.
      value: the value.

    Raises:
      UserError: the value is an unknown choice or a number out of range.
    """
    if (choices := field.metadata['choices']) and value not in choices:
        hint = '; if it is yours, import the file that registers it' if isinstance(choices, Mapping) else ''
        raise UserError(f"config.{name}='{shorten(value)}' is unknown; {use_one_of(str(value), choices)}{hint}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        at_least, above, at_most, below = _limits(field)
        if not (at_least <= value <= at_most and above < value < below):  # false for NaN and infinity
            raise UserError(f'config.{name}={shorten(value)} must be {range_of(field) or "a finite number"}')


def as_word(value: Any) -> str:
    """Formats a value for the command line: 0,1,2 or 'semseg','edges' or ()."""
    return ','.join(map(repr, value)) or '()' if isinstance(value, tuple | list) else str(value)


def range_of(field: Field) -> str:
    """Describes the allowed numbers, such as '0 or more' or 'in [0, 1)'; '' if there is no bound."""
    at_least, above, at_most, below = _limits(field)
    low = '' if max(at_least, above) == -math.inf else f'({above:g}' if above > at_least else f'[{_plain(at_least)}'
    high = '' if min(at_most, below) == math.inf else f'{below:g})' if below < at_most else f'{_plain(at_most)}]'
    if low and high:
        return f'in {low}, {high}'
    if low and above > at_least:
        return f'above {above:g}'
    if low:
        return f'at least {_plain(at_least)}' if at_least > 0 else f'{_plain(at_least)} or more'
    return (f'below {below:g}' if below < at_most else f'at most {_plain(at_most)}') if high else ''


def _limits(field: Field) -> tuple[float, float, float, float]:
    return tuple(field.metadata[limit] for limit in ('at_least', 'above', 'at_most', 'below'))


def _plain(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f'{bound:g}'
