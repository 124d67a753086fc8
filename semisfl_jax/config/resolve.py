"""Resolves a configuration to its final values, and defines when two of them are the same experiment."""

import hashlib
import json
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from semisfl_jax import algorithms, core
from semisfl_jax.algorithms.registry import option_groups, options_of
from semisfl_jax.base import file_io, machine
from semisfl_jax.base.keys import declared
from semisfl_jax.config import failures, keys, schema
from semisfl_jax.core import hparams as hparams_lib

# Keys that do not affect the numbers of a run: its length, what it stores, and where its data are.
INERT = frozenset(
    {
        *('rounds', 'checkpoint_every', 'checkpoints_kept', 'diagnostics_every', 'compilation_cache', 'official_keys'),
        'trackers',
        *('data.data_dir', 'data.cache_dir', 'data.residency'),
        *('parallel.coordinator', 'parallel.num_processes', 'parallel.process_id'),
    }
)

# Keys that may change when a run resumes elsewhere: paths of files whose checksums it keeps, and the number of devices.
_PLACES = {'data.image_folder', 'data.class_list', 'data.partition_file', 'model.weights', 'failures.trace'}
MOVABLE = INERT | _PLACES | {'parallel.devices'}


def resolve(config: ConfigDict) -> ConfigDict:
    """Returns a locked copy with the placeholder values ('auto', 0) filled in and other methods' options removed.

    The configuration must have been checked. Placeholders that depend on the machine stay: 'auto' of
    `federation.client_map`, `model.convolution` and `parallel.trials`, and `parallel.devices` 0, which `count_devices`
    resolves. So does `queue_empty_slots`, which depends on the queue.
    """
    thawed = config.as_configdict() if isinstance(config, FrozenConfigDict) else config
    resolved, method = thawed.copy_and_resolve_references(), algorithms.get(config.algorithm)
    flat = keys.flat(resolved)
    filled = {key: value for key, value in method.auto.items() if flat[key] == schema.AUTO}
    if flat['model.weights'] and not flat['data.tasks'] and flat['data.normalization'] == 'auto':
        filled['data.normalization'] = 'imagenet'
    resolved.update_from_flattened_dict(filled)
    if resolved.lr_rounds == 0:
        resolved.lr_rounds = resolved.rounds
    for key in ('data.image_folder', 'model.weights'):  # absolute, so that a run resumes and predicts from any folder
        if flat[key] and not file_io.is_remote(flat[key]):
            resolved.update_from_flattened_dict({key: str(file_io.expand_home(flat[key], f'config.{key}').absolute())})
    if resolved.failures.trace and not resolved.failures.trace_hash:
        resolved.failures.trace_hash = failures.hash_trace(resolved.failures.trace)
    with resolved.unlocked():
        for group in option_groups().keys() - {method.option_group}:
            if group in resolved:
                del resolved[group]
    return resolved.lock()


def k_s_rule(flat: dict[str, Any], method: algorithms.Method) -> str:
    """Returns the controller of K_s that a run has; 'fixed' where K_s never changes.

    Without pseudo-labels the unlabeled loss is missing or 0, which a controller would take for a falling one.

    Args:
      flat: values by dotted key.
      method: the method of the run.
    """
    learns = method.clients and not method.labels_alone(flat) and flat['pseudo_labels'] != 'none'
    if not learns or not flat['k_s']:
        return 'fixed'
    return method.k_s_rule if flat['k_s_rule'] == 'auto' else flat['k_s_rule']


def trials(config: ConfigDict) -> list[ConfigDict]:
    """Returns one configuration per trial of a resolved one, the same as for a run of that seed alone."""
    if not config.seeds:
        return [config]
    configs = []
    for seed in config.seeds:
        trial = config.copy_and_resolve_references().unlock()
        trial.update(seed=seed, seeds=())
        trial.parallel.update(trials='auto', devices=1)  # devices divide the trials, not a trial's clients
        configs.append(trial.lock())
    return configs


def num_tasks(config: ConfigDict) -> int:
    """Returns T, the number of tasks that divide the clients: the dense ones, or 1 in classification."""
    return max(1, len(config.data.tasks))


def flatten(config: ConfigDict | dict) -> dict[str, Any]:
    """Flattens as `keys.flat`, but with values as in JSON."""
    return {key: keys.as_json(value) for key, value in keys.flat(config).items()}


def identity_hash(config: ConfigDict | dict, left_out: frozenset[str] = INERT) -> str:
    """Returns the SHA-256 (hexadecimal) of all keys of a resolved configuration that affect the numbers of its run.

    Args:
      config: the resolved configuration.
      left_out: keys that do not count.
    """
    flat, added = _shared_alike(flatten(config)), keys.added().items()
    identity = {key: value for key, value in flat.items() if key not in left_out and (key, value) not in added}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def differences(config: ConfigDict | dict, other: ConfigDict | dict) -> list[str]:
    """Returns the differences that make two resolved configurations distinct experiments; MOVABLE keys do not count.

    Args:
      config: the new one.
      other: the old one.

    Returns:
      Lines 'key: OLD -> NEW', sorted.
    """
    new, old = (_shared_alike({**keys.added(), **flatten(each)}) for each in (config, other))
    both = {key: (old.get(key, '(absent)'), new.get(key, '(absent)')) for key in (new.keys() | old.keys()) - MOVABLE}
    return [f'{key}: {before} -> {after}' for key, (before, after) in sorted(both.items()) if before != after]


def _shared_alike(flat: dict[str, Any]) -> dict[str, Any]:
    """Sets one device if there are several trials: how many devices compute them changes no number."""
    return {**flat, 'parallel.devices': 1} if flat.get('seeds') else flat


def default_workdir(config: ConfigDict, name: str) -> str:
    """Returns runs/NAME-HASH of a resolved configuration: one folder per experiment, always the same.

    Args:
      config: the resolved configuration.
      name: NAME.
    """
    return f'runs/{run_name(config, name)}'


def run_name(config: ConfigDict, name: str) -> str:
    """Returns NAME-HASH of a resolved configuration, the name of its folder."""
    return f'{name}-{identity_hash(config)[:8]}'


def hparams(config: ConfigDict) -> hparams_lib.HParams:
    """Returns the hyper-parameters of a resolved configuration."""
    method, flat = algorithms.get(config.algorithm), keys.flat(config)
    labels_at_clients, mu = config.data.client_labels > 0, config.federation.mu
    labeled_rows = config.batch_size // (1 + mu) if labels_at_clients and mu else 0
    return hparams_lib.HParams(
        labeled_rows=config.batch_size if method.labels_alone(flat) else labeled_rows,
        server_trains=config.k_s > 0,
        num_clients=config.federation.num_clients,
        options=options_of(method, flat),
        **{name: group(**config[name]) for name, group in hparams_lib.GROUPS.items()},
        **{name: flat[name] for name in declared(hparams_lib.HParams)},
    )


def count_devices(config: ConfigDict) -> int:
    """Counts the devices that share the work of a configuration; `parallel.devices` 0 takes as many as possible.

    If JAX has not begun to use the CPU, splits it: into as many devices as asked for, or with 0 into one per core, for
    trials and for clients that train whole models. Clients of split methods would wait for each other.

    Raises:
      UserError: there are more processes than active clients, or JAX lacks the device that it was told to use.
    """
    asked, trials, alone = config.parallel.devices, len(config.seeds), not config.parallel.coordinator
    clients_of_task = max(1, config.federation.num_active // num_tasks(config))
    clients = 1 if indivisible(keys.flat(config)) else clients_of_task
    whole_models = algorithms.get(config.algorithm).whole_model and alone
    if alone and (asked or trials or whole_models):
        core.clients.split_cpu(asked or min(machine.cores(), trials or clients))
    machine.check_backend()
    if asked:
        return asked
    if trials:
        return core.clients.available_to_trials(trials)
    return 1 if core.clients.cpu_was_split() and not whole_models else core.clients.available(clients)


def indivisible(flat: dict[str, Any]) -> str:
    """Returns why the clients of a method cannot be divided over devices or processes; '' if they can."""
    method = algorithms.get(flat['algorithm'])
    return method.sequential(flat) if method.clients else f'{method.name} has no clients to distribute'
