"""Defines sweeps: searches of the hyper-parameters of several methods, each with as many trials (docs/sweeps.md).

    python launch.py --config=configs/sweeps/digits.py:smoke

A sweep is some methods under one configuration; the files in configs/sweeps are sweeps. Its plan has no fixed jobs:
`search` chooses the settings of the next trial.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.base.errors import UserError, describe
from semisfl_jax.lab.studies import spec

SEEDS = (100, 101)  # for tuning; studies have 0 to 19
OWN_KEYS = ('sweep_trials', 'sweep_batch', 'sweep_methods')  # of a sweep's configuration, beside those of its runs
_REFUSED = {
    'seed': 'write --config.seeds=100,101, the seeds of every trial',
    'algorithm': 'write --config.sweep_methods=NAME, …',
    'setting': "every method is searched from the configuration's values; leave it at 'harmonized'",
}


class Entry(NamedTuple):
    """A method in a sweep."""

    title: str  # in tables and figures
    fixed: Mapping[str, Any]  # flat: `algorithm`, and other keys that make it this method
    ranges: Mapping[str, Range]  # by key


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A search of the settings of several methods."""

    name: str  # with the scale that of its folder: letters, digits, '_', '-' and '.'
    title: str
    base: str  # file in configs/ without .py, or the path of another one with it
    config: ConfigDict  # complete, that of all trials but for the entries' keys
    entries: Sequence[Entry]
    trials: int  # of each method; the first has the settings of `config`
    scale: str = ''
    seeds: tuple[int, ...] = SEEDS  # of each trial
    seed: int = 0  # of the search itself
    prune: bool = True  # stop trials that are behind the median of the others
    batch: int = 5  # trials of a method that are proposed at once; those that can be one program are
    notes: tuple[str, ...] = ()
    warning: str = ''  # repeated in the report


def entry(algorithm: str, title: str = '', ranges: Mapping[str, Range] | None = None, **fixed: Any) -> Entry:
    """Makes a method of a sweep.

    Args:
      algorithm: its name.
      title: in tables; '': that of its record.
      ranges: by key; None: those of its record.
      **fixed: other keys that make it this method, with two underscores for a dot: local__objective='uda'.

    Raises:
      UserError: there is no such method.
    """
    method = sfl.algorithms.get(algorithm)
    changes = {key.replace('__', '.'): value for key, value in fixed.items()}
    searched = dict(method.ranges if ranges is None else ranges)
    return Entry(title or method.label, {'algorithm': algorithm, **method.needs, **changes}, searched)


def as_config(definition: Sweep) -> ConfigDict:
    """Returns what a file in configs/sweeps returns: the trials' configuration, whose keys can be changed, and it."""
    config = definition.config.copy_and_resolve_references().unlock()
    config.update(
        seeds=definition.seeds, sweep=definition, sweep_trials=definition.trials, sweep_batch=definition.batch
    )
    config.sweep_methods = ()  # titles or names of methods; (): all
    return config.lock()


def with_changes(definition: Sweep, changes: Mapping[str, Any]) -> Sweep:
    """Changes keys of a sweep (OWN_KEYS) and of the configuration of its trials.

    Args:
      definition: the sweep.
      changes: by dotted key, of types that a configuration takes.

    Raises:
      UserError: a key that is not the same for all trials, an unknown method, or something else in place of one.
    """
    entries = definition.entries
    if wrong := [one for one in entries if not isinstance(one, Entry)]:
        what = f'{describe(wrong[0])} is no method of a sweep; write sweeps.entry(NAME)'
        raise UserError(f'sweep {definition.name}: {what}')
    for key in changes:
        owners = [entry.title for entry in entries if key in entry.fixed]
        if key in _REFUSED or owners:
            advice = _REFUSED.get(key) or f'{owners[0]} has its own; leave it out'
            raise UserError(f'config.{key} cannot be changed in a sweep; {advice}')
    if methods := changes.get('sweep_methods'):
        known = dict.fromkeys(name for entry in entries for name in (entry.fixed['algorithm'], entry.title))
        asked = spec.named(methods, known, f'a method of {definition.name}')
        entries = [entry for entry in entries if {entry.fixed['algorithm'], entry.title} & {*asked}]
    config = definition.config.copy_and_resolve_references().unlock()
    config.update_from_flattened_dict({key: changes[key] for key in changes.keys() - {'seeds', *OWN_KEYS}})
    flat = sfl.flat(config)

    def typed(key: str, range_: Range) -> Range:  # linear(0, 1) is of all numbers between, if the key is no integer
        of_floats = isinstance(flat.get(key), float) and isinstance(range_, Range)
        return range_.as_floats() if of_floats else range_

    entries = [entry._replace(ranges={key: typed(key, entry.ranges[key]) for key in entry.ranges}) for entry in entries]
    own = {name: changes.get(f'sweep_{name}', getattr(definition, name)) for name in ('trials', 'batch')}
    seeds = tuple(changes.get('seeds', definition.seeds))
    return dataclasses.replace(definition, config=config.lock(), entries=entries, seeds=seeds, **own)


def trial_config(sweep: Sweep, entry: Entry, values: Mapping[str, Any]) -> ConfigDict:
    """Makes the configuration of a trial of a method, from its values by searched key."""
    config = sweep.config.copy_and_resolve_references().unlock()
    config.update_from_flattened_dict({**entry.fixed, **settings(sweep, values)})
    config.update(seed=0, seeds=sweep.seeds)
    return config.lock()


def settings(sweep: Sweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all keys that a trial sets, from the values of the searched ones.

    With `lr`, `lr_min` changes in proportion, so that a search changes the size of steps, not the form of their decay.
    """
    config = sweep.config
    if 'lr' not in values or not config.lr:
        return dict(values)
    return {**values, 'lr_min': float(f'{config.lr_min * values["lr"] / config.lr:.6g}')}


def untuned(sweep: Sweep, entry: Entry) -> dict[str, Any]:
    """Returns the values of the searched keys in the configuration, by key."""
    flat = sfl.flat(sweep.config) | dict(entry.fixed)
    return {key: flat[key] for key in entry.ranges}
