"""Definition of a sweep: methods under one configuration, and as many trials for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.core.errors import UserError, use_one_of

SEEDS = (100, 101)  # for tuning; studies have 0 to 9
OWN_KEYS = ('sweep_trials', 'sweep_methods')  # of a sweep's configuration, beside those of its runs


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method in a sweep."""

    title: str  # in tables and figures
    fixed: Mapping[str, Any]  # flat: `algorithm`, and other keys that make it this method
    ranges: Mapping[str, Range]  # by key


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A search of the settings of several methods."""

    name: str  # with the scale that of its folder: letters, digits, '_', '-' and '.'
    scale: str
    title: str
    base: str  # file in configs/ without .py, or the path of another one with it
    config: ConfigDict  # complete, that of all trials but for the entries' keys
    entries: tuple[Entry, ...]
    trials: int  # of each method; the first has the settings of `config`
    seeds: tuple[int, ...] = SEEDS  # of each trial
    seed: int = 0  # of the search itself
    prune: bool = True  # stop trials that are behind the median of the others
    notes: tuple[str, ...] = ()
    warning: str = ''  # repeated in the report


def entry(algorithm: str, title: str = '', ranges: Mapping[str, Range] | None = None, **fixed: Any) -> Entry:
    """A method in a sweep, searched where its record says.

    Args:
      algorithm: its name.
      title: in tables; '' means that of its record.
      ranges: in place of those of its record.
      fixed: other keys that make it this method, with two underscores for a dot: local__objective='uda'.

    Raises:
      UserError: there is no such method.
    """
    method = algorithms.get(algorithm)
    keys = {key.replace('__', '.'): value for key, value in fixed.items()}
    searched = dict(method.ranges if ranges is None else ranges)
    return Entry(title or method.label, {'algorithm': algorithm, **method.needs, **keys}, searched)


def sweep(
    name: str,
    base: str,
    entries: Sequence[Entry],
    changes: Mapping[str, Any],
    trials: int,
    scale: str = '',
    title: str = '',
    seeds: Sequence[int] = SEEDS,
    prune: bool = True,
    notes: Sequence[str] = (),
    warning: str = '',
) -> Sweep:
    """A sweep of the configuration `base` with flat `changes`; see `Sweep` for the others.

    Raises:
      UserError: there is no such configuration or key.
    """
    config = config_lib.get_config(base, dict(changes)).lock()
    seeds, notes = tuple(seeds), tuple(notes)
    return Sweep(
        name, scale, title or name, base, config, tuple(entries), trials, seeds, 0, prune, notes=notes, warning=warning
    )


def as_config(definition: Sweep) -> ConfigDict:
    """What a file in configs/sweeps returns: its trials' configuration, whose keys can be changed, and itself."""
    config = definition.config.copy_and_resolve_references().unlock()
    config.seeds = definition.seeds
    config.sweep = definition
    config.sweep_trials = definition.trials
    config.sweep_methods = ()  # titles or names of methods; (): all
    return config.lock()


def part(definition: Sweep, methods: Sequence[str]) -> Sweep:
    """The sweep of some methods, given by their titles or by `config.algorithm`; of all, if none is given.

    Raises:
      UserError: it has no such method.
    """
    names = dict.fromkeys(name for entry in definition.entries for name in _names(entry))
    asked = {word for given in methods for word in ([given] if given in names else given.split(','))}  # or 'a,b'
    for method in sorted(asked - names.keys()):
        hint = use_one_of(method, names)
        raise UserError(f"config.sweep_methods: '{method}' is not in {definition.name}; {hint}")
    chosen = (entry for entry in definition.entries if not methods or asked & set(_names(entry)))
    return dataclasses.replace(definition, entries=tuple(chosen))


def _names(entry: Entry) -> tuple[str, str]:
    return entry.fixed['algorithm'], entry.title
