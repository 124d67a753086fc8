"""The runs of a sweep: a trial is the run of one setting with all tuning seeds, in one program."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import ranges as ranges_lib
from semisfl_jax.algorithms.ranges import Range
from semisfl_jax.config import compatibility, ignored_keys, keys
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import shared_defaults
from semisfl_jax.studies import checks
from semisfl_jax.studies import plan as studies_plan
from semisfl_jax.studies import spec as studies_spec
from semisfl_jax.studies.plan import Job
from semisfl_jax.studies.sweeps import spec
from semisfl_jax.studies.sweeps.spec import Entry, Sweep

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
    config.update_from_flattened_dict({k: v for k, v in given.items() if k not in ('seeds', *spec.OWN_KEYS)})
    changed = dataclasses.replace(
        sweep,
        config=config.lock(),
        seeds=tuple(given.get('seeds', sweep.seeds)),
        trials=given.get('sweep_trials', sweep.trials),
    )
    return spec.part(changed, given.get('sweep_methods', ()))


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
    unread = compatibility.unused(compatibility.algorithms.get(method)).keys() | ignored_keys.find(config).keys()
    defaults = shared_defaults()
    for key, range_ in entry.ranges.items():
        if key not in flat or key in unread:
            raise UserError(f'it searches config.{key}, which {method} does not read here; remove the range')
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
