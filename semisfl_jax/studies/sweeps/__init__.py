"""Searches for the hyper-parameters of several methods, each with the same number of trials (docs/sweeps.md).

    python launch.py --config=configs/sweeps/digits.py:smoke

This module defines what a sweep is, methods under one configuration, and turns a trial into a run; the files in
configs/sweeps are sweeps. `search` proposes settings, with Optuna, and makes the trials; `report` writes down what was
found, with tuned.json for studies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import ranges as ranges_lib
from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.config import checks, ignored_keys, keys, load
from semisfl_jax.core.errors import UserError, found
from semisfl_jax.studies import plan, spec

SEEDS = (100, 101)  # for tuning; studies have 0 to 19
OWN_KEYS = ('sweep_trials', 'sweep_methods')  # of a sweep's configuration, beside those of its runs
_REFUSED = {
    'seed': 'write --config.seeds=100,101, the seeds of every trial',
    'algorithm': 'write --config.sweep_methods=NAME, …',
    'setting': "every method is searched from the configuration's values; leave it at 'harmonized'",
}


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
    """A method in a sweep, with title and ranges of its record unless given; `fixed`: other keys that make it this
    method, with two underscores for a dot: local__objective='uda'. UserError: there is no such method."""
    method = algorithms.get(algorithm)
    changes = {key.replace('__', '.'): value for key, value in fixed.items()}
    searched = dict(method.ranges if ranges is None else ranges)
    return Entry(title or method.label, {'algorithm': algorithm, **method.needs, **changes}, searched)


def sweep(
    name: str,
    base: str,
    entries: Sequence[Entry],
    changes: Mapping[str, Any],
    trials: int,
    scale: str = '',
    title: str = '',
    **others: Any,
) -> Sweep:
    """A sweep of the configuration `base` with flat `changes`; see `Sweep` for the others. UserError: there is no such
    configuration or key."""
    config = config_lib.get_config(base, dict(changes)).lock()
    flat, typed = keys.flat(config), []
    for one in entries:
        if not isinstance(one, Entry):
            raise UserError(f'sweep {name}: {found(one)} is no method of a sweep; write sweeps.entry(NAME)')
        # linear(0, 1) is of all numbers between, if the key is no integer
        ranges = {
            key: range_.of_floats() if isinstance(flat.get(key), float) and isinstance(range_, Range) else range_
            for key, range_ in one.ranges.items()
        }
        typed.append(dataclasses.replace(one, ranges=ranges))
    return Sweep(name, scale, title or name, base, config, tuple(typed), trials, **others)


def as_config(definition: Sweep) -> ConfigDict:
    """What a file in configs/sweeps returns: its trials' configuration, whose keys can be changed, and itself."""
    config = definition.config.copy_and_resolve_references().unlock()
    config.seeds = definition.seeds
    config.sweep = definition
    config.sweep_trials = definition.trials
    config.sweep_methods = ()  # titles or names of methods; (): all
    return config.lock()


def with_given(definition: Sweep, given: Mapping[str, Any]) -> Sweep:
    """The sweep with keys changed on the command line: those of OWN_KEYS in the sweep, all others in the configuration
    of its trials. UserError: a key that is not the same for all trials, or an unknown method."""
    for key in given:
        fixed = [entry.title for entry in definition.entries if key in entry.fixed]
        if key in _REFUSED or fixed:
            advice = _REFUSED.get(key) or f'{fixed[0]} has its own; leave it out'
            raise UserError(f'config.{key} cannot be changed in a sweep; {advice}')
    entries = definition.entries
    if methods := given.get('sweep_methods'):
        known = dict.fromkeys(name for entry in entries for name in (entry.fixed['algorithm'], entry.title))
        asked = spec.named(methods, known, f'a method of {definition.name}')
        entries = tuple(entry for entry in entries if {entry.fixed['algorithm'], entry.title} & {*asked})
    config = definition.config.copy_and_resolve_references().unlock()
    of_runs = {key: value for key, value in given.items() if key not in ('seeds', *OWN_KEYS)}
    config.update_from_flattened_dict(load.checked(of_runs, config))
    seeds, trials = tuple(given.get('seeds', definition.seeds)), given.get('sweep_trials', definition.trials)
    return dataclasses.replace(definition, config=config.lock(), entries=entries, seeds=seeds, trials=trials)


def trial_config(sweep: Sweep, entry: Entry, values: Mapping[str, Any]) -> ConfigDict:
    """The configuration of a trial: of `values` by searched key."""
    config = sweep.config.copy_and_resolve_references().unlock()
    config.update_from_flattened_dict({**entry.fixed, **settings(sweep, values)})
    config.update(seed=0, seeds=sweep.seeds)
    return config.lock()


def settings(sweep: Sweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """All keys that a trial sets, from the values of the searched ones: with `lr`, `lr_min` in proportion, so that a
    search changes the size of steps and not the form of their decay."""
    config = sweep.config
    if 'lr' not in values or not config.lr:
        return dict(values)
    return {**values, 'lr_min': float(f'{config.lr_min * values["lr"] / config.lr:.6g}')}


def untuned(sweep: Sweep, entry: Entry) -> dict[str, Any]:
    """The values of the searched keys in the configuration, by key."""
    flat = keys.flat(trial_config(sweep, entry, {}))
    return {key: flat[key] for key in entry.ranges}


def job(sweep: Sweep, entry: Entry, values: Mapping[str, Any]) -> plan.Job:
    """The run of a trial, with all tuning seeds in one program."""
    config, unchanged = trial_config(sweep, entry, values), config_lib.get_config(sweep.base)
    return plan.job(spec.cell(entry.title, '', sweep.base, config, unchanged), sweep.seeds)


def check(sweep: Sweep) -> None:
    """Raises UserError for the first mistake in the sweep, or in the configuration of a method with its values and at
    the ends of its ranges."""
    named = f'{sweep.name}:{sweep.scale}'.rstrip(':')
    if sweep.trials < 1:
        raise UserError(f'config.sweep_trials={sweep.trials}: use 1 (untuned) or more')
    if not sweep.seeds:
        raise UserError(f'{named} has no tuning seeds; write --config.seeds=100,101')
    if (split := sweep.config.data.eval_split) != 'validation':
        raise UserError(f"config.data.eval_split='{split}': a sweep needs 'validation', with data.num_validation")
    titles = [entry.title for entry in sweep.entries]
    if twice := [title for title in titles if titles.count(title) > 1]:
        raise UserError(f"{named} has two methods called '{twice[0]}'; give each its own title")
    for entry in sweep.entries:
        try:
            _check_entry(sweep, entry)
        except UserError as error:
            raise UserError(f'{named}, {entry.title}: {error}') from error


def _check_entry(sweep: Sweep, entry: Entry) -> None:
    method = entry.fixed['algorithm']
    if not entry.ranges:
        raise UserError(f'{method} has no ranges to search; add some to its record (Method.ranges) or to the sweep')
    config = trial_config(sweep, entry, {})
    config_lib.check(config)
    flat = keys.flat(config)
    unread = checks.unused(algorithms.get(method)).keys() | ignored_keys.find(config).keys()
    for key, range_ in entry.ranges.items():
        if key not in flat or key in unread:
            raise UserError(f'it searches config.{key}, which {method} does not read here; remove the range')
        if fault := ranges_lib.fault(key, range_, {}, flat):
            raise UserError(f'it searches config.{key}: {fault}')
        if flat[key] not in range_:
            raise UserError(f'config.{key}={flat[key]}, of the first trial, must be in the range, {range_.text}')
    start = untuned(sweep, entry)
    for key, range_ in entry.ranges.items():
        for end in range_.ends:
            config_lib.check(trial_config(sweep, entry, {**start, key: end}))
