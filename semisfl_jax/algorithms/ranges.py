"""Where a hyper-parameter may lie in a search: a part of a method's record (`Method.ranges`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from semisfl_jax.core.errors import UserError, found
from semisfl_jax.core.hparams import shared_defaults


class Range(NamedTuple):
    """The values that a search tries for one key; made by `log`, `linear` or `choice`."""

    scale: str  # 'log', 'linear' or 'choice'
    low: float = 0.0  # both included
    high: float = 0.0
    values: tuple[Any, ...] = ()  # of a choice

    def __contains__(self, value: object) -> bool:
        if self.scale == 'choice':
            return value in self.values
        return isinstance(value, int | float) and self.low <= value <= self.high

    def of_floats(self) -> Range:
        """The same range with bounds of floats, between which whole numbers are not the only ones."""
        return self._replace(low=float(self.low), high=float(self.high))

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
    """Numbers from `low` to `high`, whose logarithms are equally likely. UserError: `low` has none."""
    if low <= 0:
        raise UserError(f'log({low}, {high}): a number up to 0 has no logarithm; begin above 0, or write linear')
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


def fault(key: str, range_: Range, unread: Mapping[str, str], options: Collection[str]) -> str:
    """Why a search of a method cannot change a key within a range, '' if it can.

    `unread` maps shared keys that the method does not read to their features; `options` are its own keys.
    """
    if not isinstance(range_, Range):
        return f'{found(range_)} is no range; write log(low, high), linear(low, high) or choice(a, b)'
    if key in unread:
        return f"the method does not read it: '{unread[key]}' is not in its uses"
    if key in _FIXED:
        return _FIXED[key]
    if key not in shared_defaults() and key not in options:
        return 'it is neither an option of the method nor a shared hyper-parameter (the fields of HParams)'
    return ''
