"""The values that a search may try for a hyper-parameter, part of a method's record (`Method.ranges`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from semisfl_jax.base.errors import UserError, describe
from semisfl_jax.core.hparams import KEYS


class Range(NamedTuple):
    """The values that a search tries for one key; made by `log`, `linear` or `choice`."""

    scale: str  # 'log', 'linear' or 'choice'
    low: float = 0.0  # included
    high: float = 0.0  # included
    values: tuple[Any, ...] = ()  # only of 'choice'

    def __contains__(self, value: object) -> bool:
        if self.scale == 'choice':
            return value in self.values
        return isinstance(value, int | float) and self.low <= value <= self.high

    def as_floats(self) -> Range:
        """Returns the same range with float bounds, which lets a search try more than whole numbers."""
        return self._replace(low=float(self.low), high=float(self.high))

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values at which a configuration is checked: both bounds, or all values of a choice."""
        return self.values if self.scale == 'choice' else (self.low, self.high)

    @property
    def text(self) -> str:
        """The range in words: '0.002 to 0.2 (log)', or 'one of 0.9, 0.99'."""
        if self.scale == 'choice':
            return f'one of {", ".join(map(str, self.values))}'
        return f'{self.low:g} to {self.high:g} ({self.scale})'


def log(low: float, high: float) -> Range:
    """Returns the range of numbers whose logarithms are equally likely.

    Args:
      low: the lowest number, above 0.
      high: the highest number.

    Raises:
      UserError: `low` has no logarithm.
    """
    if low <= 0:
        raise UserError(f'log({low}, {high}): a number up to 0 has no logarithm; begin above 0, or write linear')
    return Range('log', low, high)


def linear(low: float, high: float) -> Range:
    """Returns the range of equally likely numbers from `low` to `high`."""
    return Range('linear', low, high)


def choice(*values: Any) -> Range:
    """Returns the range that holds `values` alone."""
    return Range('choice', values=values)


# --- ranges of keys that several methods share

# A decade to either side of SemiSFL's 0.02. The lowest rate, `lr_min`, follows in proportion (lab/studies/sweeps/).
LR = log(0.002, 0.2)
# Published values: 0.75 (FedMatch's code), 0.8 (UDA), 0.85 (FedDure's baselines) and 0.95 (the other methods).
THRESHOLD = linear(0.5, 0.99)
# A decade to either side of 1, the weight of the unlabeled loss in the papers.
WEIGHT = log(0.1, 10.0)
# Two decades around the 5e-4 of SemiSFL and SemiFL.
WEIGHT_DECAY = log(5e-5, 5e-3)
# The teacher remembers about 10, 100 or 1,000 steps; SemiSFL has 0.99.
EMA_DECAY = choice(0.9, 0.99, 0.999)

# Keys that no search may change, and why
_WORK_KEYS = 'k_s k_u batch_size server_batch_size pre_rounds lr_rounds local.epochs local.steps local.objective'
_FIXED = {
    **dict.fromkeys(
        _WORK_KEYS.split(),
        'it changes how much work a round is, and searches give equal budgets; fix it in the configuration',
    ),
    'pseudo_labels': 'it makes an oracle of the method, not a setting; fix it in the configuration',
    'lr_min': 'it follows lr in proportion; leave it out',
}


def fault(key: str, range_: Range, unread: Mapping[str, str], options: Collection[str]) -> str:
    """Returns why a search cannot change a key within a range; '' if it can.

    Args:
      key: a configuration key.
      range_: the range to search.
      unread: the shared keys that the method does not read -> their features.
      options: the method's own keys.
    """
    if not isinstance(range_, Range):
        return f'{describe(range_)} is no range; write log(low, high), linear(low, high) or choice(a, b)'
    if key in unread:
        return f"the method does not read it: '{unread[key]}' is not in its uses"
    if key in _FIXED:
        return _FIXED[key]
    if key not in KEYS and key not in options:
        return 'it is neither an option of the method nor a shared hyper-parameter (the fields of HParams)'
    return ''
