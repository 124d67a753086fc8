"""Resolves a configuration to its final values, and defines when two of them are the same experiment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from semisfl_jax import algorithms, failures, machine, parallel
from semisfl_jax import hparams as hparams_lib
from semisfl_jax.algorithms.options import options_of
from semisfl_jax.algorithms.registry import option_groups
from semisfl_jax.config import chosen, devices, keys

# Keys that do not affect the numbers of a run: its length, what it keeps, and where its data are stored.
INERT = frozenset(
    {
        'rounds',
        'checkpoint_every',
        'checkpoints_kept',
        'diagnostics_every',
        'compilation_cache',
        'official_keys',
        'machine_keys',
        'data.data_dir',
        'data.cache_dir',
        'data.residency',
        'parallel.coordinator',
        'parallel.num_processes',
        'parallel.process_id',
    }
)


def resolve(config: ConfigDict, written: Mapping[str, Any] | None = None) -> ConfigDict:
    """A locked copy with every placeholder value ('auto', 0) filled in and the options of other methods removed.

    `parallel.devices` 0 is filled in from the hardware, because the number of devices determines the order of sums; a
    run that began before keeps its number. The form of the programs is left at 'auto': `chosen` fills it in where a run
    begins.

    Args:
      config: checked.
      written: the flat config.json of the run that goes on; None for a new one.
    """
    resolved = chosen.with_devices(_without_hardware(config), written)
    if resolved.parallel.devices == 0:
        resolved.parallel.devices = _as_many_as_fit(resolved)
    elif not resolved.parallel.coordinator:
        parallel.cpu.split(resolved.parallel.devices)
    return resolved.lock()


def _without_hardware(config: ConfigDict) -> ConfigDict:
    """As `resolve`, but `parallel.devices` is left as it is, and the copy is not locked."""
    thawed = config.as_configdict() if isinstance(config, FrozenConfigDict) else config
    resolved, method = thawed.copy_and_resolve_references(), algorithms.get(config.algorithm)
    flat = keys.flat(resolved)
    filled = {key: value for key, value in of_method(method).items() if flat[key] == chosen.AUTO}
    resolved.update_from_flattened_dict(filled)
    if resolved.lr_rounds == 0:
        resolved.lr_rounds = resolved.rounds
    if resolved.failures.trace and not resolved.failures.trace_hash:
        resolved.failures.trace_hash = failures.hash_of(resolved.failures.trace)
    with resolved.unlocked():
        for group in option_groups().keys() - {method.option_group}:
            if group in resolved:
                del resolved[group]
    return resolved.unlock()


def of_method(method: algorithms.Method) -> dict[str, str]:
    """What 'auto' means for a method, by key."""
    return {
        'k_s_rule': 'paper' if method.adapts_k_s else 'fixed',
        'local.weighting': 'samples' if method.by_images else 'uniform',
        'local.optimizer_state': 'kept' if method.keeps_optimizers else 'fresh',
        'local.steps': method.steps,
    }


def _as_many_as_fit(config: ConfigDict) -> int:
    """`parallel.devices` for all devices that can share the work.

    A CPU is one for each core where they would hardly wait for each other: for trials, and for clients that train
    whole models. Clients of split methods meet in every iteration.
    """
    if config.seeds:
        parallel.cpu.split(min(machine.cores(), len(config.seeds)))
        return parallel.available_to_trials(len(config.seeds))
    clients = 1 if devices.indivisible(flatten(config)) else config.federation.num_active
    if algorithms.get(config.algorithm).whole_model and not config.parallel.coordinator:
        parallel.cpu.split(min(machine.cores(), clients))
    elif parallel.cpu.was_split():
        return 1
    return parallel.available(clients)


def trials(config: ConfigDict) -> list[ConfigDict]:
    """The configuration of every trial of a resolved configuration, the same as for a run of that seed alone."""
    if not config.seeds:
        return [config]
    configs = []
    for seed in config.seeds:
        trial = config.copy_and_resolve_references().unlock()
        trial.update(seed=seed, seeds=())
        trial.parallel.update(trials='auto', devices=1)  # devices divide the trials, not the clients of a trial
        configs.append(trial.lock())
    return configs


def flatten(config: ConfigDict | dict) -> dict[str, Any]:
    """As `keys.flat`, but tuples become lists, as in JSON."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in keys.flat(config).items()}


def identity_hash(config: ConfigDict | dict) -> str:
    """SHA-256 (hexadecimal) of all keys of a resolved configuration that affect the numbers of its run, with the form
    of the programs and the number of devices as the user gave them: the machine's choice changes no more than how the
    numbers are rounded."""
    identity = {
        key: value
        for key, value in chosen.identity(_shared_alike(flatten(config))).items()
        if key not in INERT and not (key in keys.ADDED and value == keys.ADDED[key])
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def differences(config: ConfigDict | dict, other: ConfigDict | dict) -> list[str]:
    """Differences that make two resolved configurations distinct experiments: 'key: `other` -> `config`', sorted.

    So does another form of the programs, whoever chose it; but 'auto' agrees with any that the machine chose.
    """
    new, old = (_shared_alike(keys.completed(flatten(each))) for each in (config, other))
    new_given, old_given = chosen.identity(new), chosen.identity(old)
    names = sorted((new.keys() | old.keys()) - INERT)
    absent = '(absent)'
    return [
        f'{key}: {old.get(key, absent)} -> {new.get(key, absent)}'
        for key in names
        if new.get(key, absent) != old.get(key, absent)
        and not (chosen.AUTO in (new.get(key), old.get(key)) and new_given.get(key) == old_given.get(key))
    ]


def _shared_alike(flat: dict[str, Any]) -> dict[str, Any]:
    """A flat configuration in which several trials are on one device: how many compute them changes no number."""
    return {**flat, 'parallel.devices': 1} if flat.get('seeds') else flat


def default_workdir(config: ConfigDict, name: str) -> str:
    """runs/NAME-HASH: the same experiment always maps to the same folder, a different one to another."""
    return f'runs/{name}-{identity_hash(_without_hardware(config))[:8]}'


def hparams(config: ConfigDict) -> hparams_lib.HParams:
    """The hyper-parameters of a resolved configuration."""
    method, flat = algorithms.get(config.algorithm), keys.flat(config)
    return hparams_lib.from_config(config, options_of(method, flat), method.labels_alone(flat))
