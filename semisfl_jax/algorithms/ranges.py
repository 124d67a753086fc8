"""Where a hyper-parameter may lie in a search: a part of a method's record (`Method.ranges`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from semisfl_jax.core.hparams import shared_defaults

SCALES = ('log', 'linear', 'choice')


class Range(NamedTuple):
    """The values that a search tries for one key; made by `log`, `linear` or `choice`."""

    scale: str  # of SCALES
    low: float = 0.0  # both included
    high: float = 0.0
    values: tuple[Any, ...] = ()  # of a choice

    def __contains__(self, value: object) -> bool:
        if self.scale == 'choice':
            return value in self.values
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values at which a configuration is checked: both bounds, or all values of a choice."""
        return self.values if self.scale == 'choice' else (self.low, self.high)

    @property
    def text(self) -> str:
        """'0.002 to 0.2 (log)', or 'one of 0.9, 0.99'."""
        if self.scale == 'choice':
            return f'one of {", ".join(map(str, self.values))}'
        return f'{self.low:g} to {self.high:g} ({self.scale})'


def log(low: float, high: float) -> Range:
    """Numbers from `low` to `high`, whose logarithms are equally likely."""
    return Range('log', low, high)


def linear(low: float, high: float) -> Range:
    """Numbers from `low` to `high`, equally likely."""
    return Range('linear', low, high)


def choice(*values: Any) -> Range:
    """One of `values`."""
    return Range('choice', values=values)


# --- ranges of keys that several methods have

# A decade to either side of 0.02, SemiSFL's. The lowest rate, `lr_min`, follows in proportion (studies/sweeps/).
LR = log(0.002, 0.2)
# Published values: 0.75 (FedMatch's code), 0.8 (UDA), 0.85 (FedDure's baselines) and 0.95 (the others).
THRESHOLD = linear(0.5, 0.99)
# A decade to either side of 1, at which the papers weigh their unlabeled losses.
WEIGHT = log(0.1, 10.0)
# Two decades around 5e-4, which SemiSFL and SemiFL have.
WEIGHT_DECAY = log(5e-5, 5e-3)
# What the teacher remembers: about 10, 100 or 1,000 steps; SemiSFL has 0.99.
EMA_DECAY = choice(0.9, 0.99, 0.999)

# Keys that no search may change, and why
_OF_WORK = 'k_s k_u batch_size server_batch_size pre_rounds lr_rounds local.epochs local.steps local.objective'
_FIXED = {
    **dict.fromkeys(
        _OF_WORK.split(),
        'it changes how much work a round is, and searches give equal budgets; fix it in the configuration',
    ),
    'pseudo_labels': 'it makes an oracle of the method, not a setting; fix it in the configuration',
    'lr_min': 'it follows lr in proportion; leave it out',
}


def fault(key: str, range_: Range, unread: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """What is wrong with the range of a key, '' if nothing.

    `unread` maps shared keys that the method does not read to their features, `options` its options to their defaults.
    """
    known = {**shared_defaults(), **options}
    if key in unread:
        return f"the method does not read it: '{unread[key]}' is not in its uses"
    if key in _FIXED:
        return _FIXED[key]
    if key not in known:
        return 'it is neither an option of the method nor a shared hyper-parameter (the fields of HParams)'
    if not isinstance(range_, Range) or range_.scale not in SCALES:
        return 'a range is made with log(low, high), linear(low, high) or choice(value, …)'
    default, ends = known[key], range_.ends
    if range_.scale == 'choice':
        if len(set(ends)) < max(len(ends), 2):
            return 'a choice needs two values or more, each once'
    elif type(default) not in (int, float):
        return f'its default {default!r} is not a number; use choice(value, …)'
    elif not -math.inf < range_.low < range_.high < math.inf:
        return f'its bounds {range_.low} and {range_.high} must be finite, the first below the second'
    elif range_.scale == 'log' and range_.low <= 0:
        return f'its lower bound {range_.low} must be above 0, as it is on a logarithmic scale'
    kinds = (int, float) if type(default) is float and range_.scale != 'choice' else (type(default),)
    if wrong := [end for end in ends if type(end) not in kinds]:
        return f'{wrong[0]!r} is not of type {type(default).__name__}, as its default {default!r} is'
    return ''
