"""A key of a configuration: a field of a dataclass that says its default, its meaning and which values are allowed.

configs/default.py has those of every run; a method's options are others. Checks, help, the table in the documentation
and warnings of keys without effect follow from what is said there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from semisfl_jax.core.errors import UserError, shorten, use_one_of

Field = dataclasses.Field
Choices = Collection[str] | Callable[[], Collection[str]]


def key(
    default: Any,
    meaning: str = '',
    *,
    choices: Choices = (),
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
    feature: str = '',
    part: str = '',
    objectives: tuple[str, ...] = (),
    idle: Mapping[str, Any] | None = None,
    ignorable: bool = False,
) -> Any:
    """A field of a dataclass: a key of the configuration.

    Args:
      default: its default value, which also determines its type.
      meaning: its description, for `--help KEY` and docs/options.md; in configs/default.py the comment after it.
      choices: the allowed values, if they are names; a function if users can add some.
      at_least, above, at_most, below: bounds of a number.
      feature: that a method must have (`Method.uses`): a run of any other method may not change the key.
      part: without which a method has no use for the key, which then has no effect: 'clients', 'memory queue' or
        'projection head'.
      objectives: the values of `local.objective` that read it; other methods read it if clients train on pseudo-labels.
      idle: the values of other keys, one or a tuple, at which it has no effect.
      ignorable: of a method's option: whether runs of other methods may change it, as a data set's configuration does.
    """
    bounds = {'at_least': at_least, 'above': above, 'at_most': at_most, 'below': below}
    readers = {'feature': feature, 'part': part, 'objectives': objectives, 'idle': idle or {}, 'ignorable': ignorable}
    return dataclasses.field(default=default, metadata={'meaning': meaning, 'choices': choices, **bounds, **readers})


_PLAIN = key(None).metadata  # of a field without rules


def rules(field: Field) -> Mapping[str, Any]:
    """What `key` was told of a field."""
    return field.metadata or _PLAIN


def choices_of(field: Field) -> Collection[str]:
    """The allowed names of a key, empty if it has none."""
    choices = rules(field)['choices']
    return choices() if callable(choices) else choices


def check_value(name: str, field: Field, value: Any) -> None:
    """Checks one value of a key, of its type.

    Raises:
      UserError: an unknown choice or a number out of range.
    """
    if (choices := choices_of(field)) and value not in choices:
        own = '; if it is yours, import the file that registers it' if callable(rules(field)['choices']) else ''
        raise UserError(f"config.{name}='{shorten(value)}' is unknown; {use_one_of(str(value), choices)}{own}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        at_least, above, at_most, below = _limits(field)
        if not (at_least <= value <= at_most and above < value < below):  # NaN and infinity never are
            raise UserError(f'config.{name}={shorten(value)} must be {range_of(field) or "a finite number"}')


def range_of(field: Field) -> str:
    """The allowed numbers in words, such as '0 or more' or 'in [0, 1)'; '' if there is no bound."""
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
    return tuple(rules(field)[limit] for limit in ('at_least', 'above', 'at_most', 'below'))


def _plain(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f'{bound:g}'
