"""Definition of a sweep: methods under one configuration, and as many trials for each."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import ranges as ranges_lib
from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.config import compatibility, keys
from semisfl_jax.core import atomic_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import shared_defaults
from semisfl_jax.core.wording import shorten, use_one_of
from semisfl_jax.studies import checks, tuned
from semisfl_jax.studies import plan as studies_plan
from semisfl_jax.studies import spec as studies_spec
from semisfl_jax.studies.plan import Job

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


# The runs of a sweep: a trial is the run of one setting with all tuning seeds, in one program.


_REFUSED = {
    'seed': 'write --config.seeds=100,101, the seeds of every trial',
    'algorithm': 'write --config.sweep_methods=NAME, …',
    'setting': "every method is searched from the configuration's values; leave it at 'harmonized'",
}
MOST_TRIALS = 10_000  # of a method: more than anybody has time for


def with_given(sweep: Sweep, given: Mapping[str, Any]) -> Sweep:
    """The sweep with keys changed on the command line.

    Args:
      sweep: as defined in its file.
      given: flat key -> value; those of `spec.OWN_KEYS` change the sweep, all others the configuration of its trials.

    Raises:
      UserError: a key that is not the same for all trials, or an unknown method.
    """
    for key in given:
        fixed = [entry.title for entry in sweep.entries if key in entry.fixed]
        if key in _REFUSED or fixed:
            advice = _REFUSED.get(key) or f'{fixed[0]} has its own; leave it out'
            raise UserError(f'config.{key} cannot be changed in a sweep; {advice}')
    config = sweep.config.copy_and_resolve_references().unlock()
    config.update_from_flattened_dict({k: v for k, v in given.items() if k not in ('seeds', *OWN_KEYS)})
    changed = dataclasses.replace(
        sweep,
        config=config.lock(),
        seeds=tuple(given.get('seeds', sweep.seeds)),
        trials=given.get('sweep_trials', sweep.trials),
    )
    return part(changed, given.get('sweep_methods', ()))


def folder_name(sweep: Sweep, given: Mapping[str, Any]) -> str:
    """Folder of the report below the root: NAME-SCALE, with a hash if keys that affect the numbers were changed.

    More trials continue the search in the same folder.
    """
    free = config_lib.INERT - {'rounds'} | {'sweep_trials'}
    changed = {key: value for key, value in given.items() if key not in free}
    mark = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
    return '-'.join(filter(None, (sweep.name, sweep.scale, mark if changed else '')))


def untuned(sweep: Sweep, entry: Entry) -> dict[str, Any]:
    """The values of the searched keys in the configuration, by key."""
    flat = keys.flat(_config(sweep, entry, {}))
    return {key: flat[key] for key in entry.ranges}


def settings(sweep: Sweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """All keys that a trial sets, from the values of the searched ones: with `lr`, `lr_min` in proportion, so that a
    search changes the size of steps and not the form of their decay."""
    config = sweep.config
    if 'lr' not in values or not config.lr:
        return dict(values)
    return {**values, 'lr_min': float(f'{config.lr_min * values["lr"] / config.lr:.6g}')}


def trial_config(sweep: Sweep, entry: Entry, values: Mapping[str, Any]) -> ConfigDict:
    """The configuration of a trial: of `values` by searched key."""
    return _config(sweep, entry, settings(sweep, values))


def job(sweep: Sweep, entry: Entry, values: Mapping[str, Any]) -> Job:
    """The run of a trial."""
    config, unchanged = trial_config(sweep, entry, values), config_lib.get_config(sweep.base)
    return studies_plan.job(studies_spec.cell(entry.title, '', sweep.base, config, unchanged), sweep.seeds)


def _config(sweep: Sweep, entry: Entry, changes: Mapping[str, Any]) -> ConfigDict:
    config = sweep.config.copy_and_resolve_references().unlock()
    config.update_from_flattened_dict({**entry.fixed, **changes})
    config.update(seed=0, seeds=sweep.seeds)
    return config.lock()


def check(sweep: Sweep) -> None:
    """Checks the sweep, and the configuration of every method with its own values and at the ends of its ranges.

    Raises:
      UserError: for the first mistake.
    """
    checks.check_name('a sweep', sweep.name)
    if sweep.scale:
        checks.check_name(f'the scale of the sweep {sweep.name}', sweep.scale)
    named, config = f'{sweep.name}:{sweep.scale}'.rstrip(':'), sweep.config
    if sweep.trials > MOST_TRIALS:
        raise UserError(f'config.sweep_trials={sweep.trials} is more than {MOST_TRIALS:,} for a method; use fewer')
    if sweep.trials < 1:
        raise UserError(f'config.sweep_trials={sweep.trials} leaves nothing to try; use 1 (untuned) or more')
    if not sweep.seeds:
        raise UserError(f'{named} has no tuning seeds; write --config.seeds=100,101')
    if not sweep.entries:
        raise UserError(f'{named} has no methods; list some in its `entries`')
    if config.data.eval_split != 'validation':
        raise UserError(
            f"config.data.eval_split='{config.data.eval_split}': a sweep chooses by validation accuracy, never by the "
            "test set; use 'validation', with data.num_validation"
        )
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
    config = _config(sweep, entry, {})
    config_lib.check(config)
    flat = keys.flat(config)
    unread, defaults = compatibility.unused(compatibility.algorithms.get(method)), shared_defaults()
    for key, range_ in entry.ranges.items():
        if key not in flat or key in unread:
            raise UserError(f'it searches config.{key}, which {method} does not read; remove the range')
        if fault := ranges_lib.fault(key, range_, {}, {k: v for k, v in flat.items() if k not in defaults}):
            raise UserError(f'it searches config.{key}: {fault}')
        if flat[key] not in range_:
            raise UserError(
                f'config.{key}={flat[key]} is outside of the range that is searched, {range_.text}; the first trial '
                'has the value of the configuration, so widen the range or change the value'
            )
    for values in _corners(untuned(sweep, entry), entry.ranges):
        config_lib.check(trial_config(sweep, entry, values))


def _corners(start: Mapping[str, Any], ranges: Mapping[str, Range]) -> list[dict[str, Any]]:
    """The values at which a search begins, with one key at a time at an end of its range."""
    return [{**start, key: end} for key, range_ in ranges.items() for end in range_.ends]


# What a sweep was defined as when it began, in its folder: later trials must be of the same search.


DEFINITION = tuned.SWEEP
FORMAT = 1
_SHOWN = 3


def check_definition(folder: Path, sweep: Sweep) -> None:
    """Writes the definition into the folder of a new sweep, or compares it with that of an earlier start.

    The number of trials is not part of it: more trials continue the search.

    Raises:
      UserError: the folder belongs to another search, or its definition cannot be read.
    """
    file, content = folder / DEFINITION, {'format': FORMAT, **_content(sweep)}
    if not file.exists():
        if (folder / 'optuna.journal').exists():
            raise UserError(
                f'{folder} has trials but no {DEFINITION}; restore it from a copy, or choose another --workdir'
            )
        atomic_io.write_json(file, content)
        return
    old, new = config_lib.flatten(_completed(file)), config_lib.flatten(content)
    differing = [
        f'{key}: {shorten(old.get(key, "(absent)"))} -> {shorten(new.get(key, "(absent)"))}'
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if differing:
        more = f' and {len(differing) - _SHOWN} more' if len(differing) > _SHOWN else ''
        raise UserError(
            f'{folder} belongs to another search ({"; ".join(differing[:_SHOWN])}{more}); choose another --workdir, or '
            'remove that folder: the runs, which other searches may need, are not in it'
        )


def _completed(file: Path) -> dict[str, Any]:
    """The content of a file, with the keys of configurations that it is too old to have."""
    advice = 'restore it from a copy, or choose another --workdir'
    try:
        content = atomic_io.read_object(file)
    except UserError as error:
        raise UserError(f'{error}; {advice}') from error
    methods = content.get('methods')
    if not isinstance(methods, dict) or not all(isinstance(entry, dict) for entry in methods.values()):
        raise UserError(f'{file} was not written by a sweep; {advice}')
    for entry in methods.values():
        entry['settings'] = keys.completed(entry.get('settings', {}))
    return content


def _content(sweep: Sweep) -> dict[str, Any]:
    methods = {}
    for entry in sweep.entries:
        config = config_lib.resolve(trial_config(sweep, entry, untuned(sweep, entry)))
        settings = config_lib.flatten(config)
        methods[entry.title] = {
            'ranges': {key: range_.text for key, range_ in entry.ranges.items()},
            'settings': {key: value for key, value in settings.items() if key not in config_lib.INERT - {'rounds'}},
        }
    return {'seeds': list(sweep.seeds), 'seed': sweep.seed, 'prune': sweep.prune, 'methods': methods}
