"""Resolves a configuration to its final values, and defines when two of them are the same experiment."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from semisfl_jax import algorithms, core
from semisfl_jax.algorithms.registry import option_groups, options_of
from semisfl_jax.config import failures, keys
from semisfl_jax.core import file_io, machine
from semisfl_jax.core import hparams as hparams_lib

# Keys that do not affect the numbers of a run: its length, what it keeps, and where its data are stored.
INERT = frozenset(
    {
        *('rounds', 'checkpoint_every', 'checkpoints_kept', 'diagnostics_every', 'compilation_cache', 'official_keys'),
        *('data.data_dir', 'data.cache_dir', 'data.residency'),
        *('parallel.coordinator', 'parallel.num_processes', 'parallel.process_id'),
    }
)


def resolve(config: ConfigDict) -> ConfigDict:
    """A locked copy with the placeholder values ('auto', 0) filled in and the options of other methods removed.

    The configuration is checked. What depends on the machine stays as it is: 'auto' of `federation.client_map`,
    `model.convolution` and `parallel.trials`, and `parallel.devices` 0, which `count_devices` resolves. So does
    `queue_empty_slots`, which depends on the queue.
    """
    thawed = config.as_configdict() if isinstance(config, FrozenConfigDict) else config
    resolved, method = thawed.copy_and_resolve_references(), algorithms.get(config.algorithm)
    flat = keys.flat(resolved)
    filled = {key: value for key, value in of_method(method).items() if flat[key] == keys.AUTO}
    resolved.update_from_flattened_dict(filled)
    if resolved.lr_rounds == 0:
        resolved.lr_rounds = resolved.rounds
    for key in ('data.image_folder', 'model.weights'):  # absolute: the run is found, and can predict, from everywhere
        if flat[key]:
            resolved.update_from_flattened_dict({key: str(file_io.expand_home(flat[key], f'config.{key}').absolute())})
    if resolved.failures.trace and not resolved.failures.trace_hash:
        resolved.failures.trace_hash = failures.hash_of(resolved.failures.trace)
    with resolved.unlocked():
        for group in option_groups().keys() - {method.option_group}:
            if group in resolved:
                del resolved[group]
    return resolved.lock()


def of_method(method: algorithms.Method) -> dict[str, str]:
    """What 'auto' means for a method, by key."""
    return {
        'k_s_rule': method.k_s_rule,
        'local.weighting': 'samples' if method.by_images else 'uniform',
        'local.optimizer_state': 'kept' if method.keeps_optimizers else 'fresh',
        'local.steps': method.steps,
    }


def k_s_rule(flat: dict[str, Any], method: algorithms.Method) -> str:
    """The controller of K_s that a run has; 'fixed' where K_s never changes.

    Without pseudo-labels there is no unlabeled loss, or it is 0, which a controller would take for one that falls.
    """
    learns = method.clients and not method.labels_alone(flat) and flat['pseudo_labels'] != 'none'
    if not learns or not flat['k_s']:
        return 'fixed'
    return method.k_s_rule if flat['k_s_rule'] == 'auto' else flat['k_s_rule']


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
    """SHA-256 (hexadecimal) of all keys of a resolved configuration that affect the numbers of its run."""
    identity = {
        key: value
        for key, value in _shared_alike(flatten(config)).items()
        if key not in INERT and not (key in keys.ADDED and value == keys.ADDED[key])
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def differences(config: ConfigDict | dict, other: ConfigDict | dict) -> list[str]:
    """Differences that make two resolved configurations distinct experiments: 'key: `other` -> `config`', sorted."""
    new, old = (_shared_alike({**keys.ADDED, **flatten(each)}) for each in (config, other))
    both = {key: (old.get(key, '(absent)'), new.get(key, '(absent)')) for key in (new.keys() | old.keys()) - INERT}
    return [f'{key}: {before} -> {after}' for key, (before, after) in sorted(both.items()) if before != after]


def _shared_alike(flat: dict[str, Any]) -> dict[str, Any]:
    """A flat configuration in which several trials are on one device: how many compute them changes no number."""
    return {**flat, 'parallel.devices': 1} if flat.get('seeds') else flat


def default_workdir(config: ConfigDict, name: str) -> str:
    """runs/NAME-HASH of a resolved configuration: each experiment always has the same folder, another one another."""
    return f'runs/{name}-{identity_hash(config)[:8]}'


def hparams(config: ConfigDict) -> hparams_lib.HParams:
    """The hyper-parameters of a resolved configuration."""
    method, flat = algorithms.get(config.algorithm), keys.flat(config)
    return hparams_lib.from_config(config, options_of(method, flat), method.labels_alone(flat))


def count_devices(config: ConfigDict) -> int:
    """How many devices share the work of a resolved configuration; `parallel.devices` 0 is as many as can.

    Divides a CPU that JAX has not begun to use: into as many devices as asked for, or with 0 into one for each core,
    for trials and for clients that train whole models. Clients of split methods would wait for each other.

    Raises:
      UserError: there are more processes than active clients.
    """
    asked = config.parallel.devices
    if asked:
        if not config.parallel.coordinator:
            core.split_cpu(asked)
        return asked
    if config.seeds:
        core.split_cpu(min(machine.cores(), len(config.seeds)))
        return core.available_to_trials(len(config.seeds))
    of_a_task = max(1, config.federation.num_active // max(1, len(config.data.tasks)))
    clients = 1 if indivisible(keys.flat(config)) else of_a_task
    if algorithms.get(config.algorithm).whole_model and not config.parallel.coordinator:
        core.split_cpu(min(machine.cores(), clients))
    elif core.cpu_was_split():
        return 1
    return core.available(clients)


def indivisible(flat: dict[str, Any]) -> str:
    """Why the clients of a method cannot be divided over devices or processes; '' if they can."""
    method = algorithms.get(flat['algorithm'])
    return method.sequential(flat) if method.clients else f'{method.name} has no clients to distribute'
