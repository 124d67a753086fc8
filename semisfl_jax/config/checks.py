"""Validates a configuration: first every key by its table, then combinations of keys."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms, augment, costs, models
from semisfl_jax.algorithms.method import Method
from semisfl_jax.algorithms.registry import option_fields
from semisfl_jax.base import hosts, machine
from semisfl_jax.base.errors import UserError, use_one_of
from semisfl_jax.base.keys import check_value
from semisfl_jax.config import failures, keys, load, schema
from semisfl_jax.config.resolve import flatten, indivisible
from semisfl_jax.core import hparams
from semisfl_jax.data import partition
from semisfl_jax.tasks import DENSE, PARTS

_MOST = 2**31  # rows, clients, iterations and rounds are counted in int32 on the device


def check(config: ConfigDict) -> None:
    """Checks everything that can be checked without data or a model.

    Raises:
      UserError: for the first key or value that is unknown, of the wrong type, out of range, or conflicts with another;
        or for a setting of JAX with which nothing trains.
    """
    machine.check_settings()
    if not isinstance(config, ConfigDict):
        raise UserError(f"{config!r} is not a configuration; write get_config('digits'), or ConfigDict(DICTIONARY)")
    flat = flatten(config)
    keys.check_names(flat)
    for key, field in keys.fields().items():
        if key in flat:
            value = flat[key]
            keys.check_type(key, value, keys.type_of(key, field), may_be_none=field.default is None)
            if type(value) is int and not key.endswith('seed') and not -_MOST <= value < _MOST:
                raise UserError(f'config.{key}={value} does not fit in 32 bits; use less than 2**31 = {_MOST:,}')
            if key == 'algorithm':
                algorithms.get(value)  # which says more than that it is no choice
            check_value(key, field, value)
    method = algorithms.get(flat['algorithm'])
    _refuse(_faults_of_seeds(flat['seed'], flat['seeds']))
    for name in {*flat['trackers']} - {*schema.TRACKERS}:
        raise UserError(f'config.trackers: {name!r} is unknown; {use_one_of(str(name), schema.TRACKERS)}')
    augment.check(augment.AugmentOptions(**config.augment))
    _refuse(_faults_of_sizes(flat))
    _refuse(_faults_of_processes(flat))
    _refuse(_faults_of_devices(flat))
    load.check_setting(flat)
    _refuse(_faults_of_method(method, flat))
    _refuse(_faults_of_tasks(method, flat))
    _refuse(_faults_of_labels(method, flat))
    method.check(flat)
    _refuse(_faults_of_optimization(flat))
    _refuse(partition.faults(config))
    costs.check_network(flat)
    costs.check_model(flat)
    failures.check(flat)


def _refuse(faults: Iterator[str]) -> None:
    for fault in faults:
        raise UserError(f'config.{fault}')


def unused(method: Method) -> dict[str, Any]:
    """Returns the keys that a method does not use, with their defaults (as in JSON, of a round as in HParams).

    These are the keys of features it lacks, and the options of other methods except those that any run may set.
    Changing one of them is an error.
    """
    fields, options = {**keys.fields(), **hparams.KEYS}, option_fields()
    return {
        key: keys.as_json(field.default)
        for key, field in fields.items()
        if field.metadata['feature'] not in ('', *method.uses)
        or (key in options and key.partition('.')[0] != method.option_group and not field.metadata['ignorable'])
    }


def _faults_of_seeds(seed: int, seeds: list) -> Iterator[str]:
    for value in seeds:
        if type(value) is not int:
            yield f'seeds holds {value!r}, which is not an integer; write --config.seeds=0,1,2'
        if not 0 <= value <= schema.LARGEST_SEED:
            yield f'seeds holds {value}: a seed must be in 0 .. 2**32 - 1'
        if seeds.count(value) > 1:
            yield f'seeds holds {value} more than once; give each seed once'
    if seeds and seed:
        yield f'seed={seed} and config.seeds={tuple(seeds)} contradict each other; give one of the two'


def _faults_of_sizes(flat: Mapping[str, Any]) -> Iterator[str]:
    """Yields faults in pairs of numbers where one bounds the other, and in sizes that tasks do not allow."""
    active, clients = flat['federation.num_active'], flat['federation.num_clients']
    if active > clients:
        yield f'federation.num_active={active} is more than federation.num_clients={clients}; lower it'
    side, padded = flat['data.image_size'], flat['data.pad_to']
    if 0 < padded < side:
        yield f'data.pad_to={padded} is below data.image_size={side}; use {side} or more, or 0 for no padding'
    if objects := [task for task in flat['data.tasks'] if task in PARTS]:
        still = {'data.pad_to': 0, **{f'augment.{key}': value for key, value in augment.STILL.items()}}
        for key, value in still.items():
            if flat[key] != value:
                yield f"{key}={flat[key]}: only flips move what task '{objects[0]}' learns; use {key}={value}"
    if flat['lr_min'] > flat['lr']:
        yield f'lr_min={flat["lr_min"]} is above lr={flat["lr"]}; the schedule falls from lr to lr_min: lower it, too'
    period, horizon = flat['frequency.period'], flat['frequency.horizon']
    if horizon % period or horizon < 2 * period:
        yield f'frequency.horizon={horizon} must be a multiple of frequency.period={period}, and at least twice it'


def _faults_of_optimization(flat: Mapping[str, Any]) -> Iterator[str]:
    if flat['sampling'] == 'replicated' and flat['local.epochs']:
        passes = f'local.epochs={flat["local.epochs"]}'
        yield f"sampling='replicated' repeats a client's images to fill k_u iterations, not {passes}; use 'epochs'"
    if flat['optimizer'] == 'adam' and flat['nesterov']:
        yield "nesterov=True belongs to optimizer='sgd'; with 'adam' use nesterov=False"


# --- devices and processes, checked without querying the devices


def _faults_of_devices(flat: dict[str, Any]) -> Iterator[str]:
    devices, active, trials = flat['parallel.devices'], flat['federation.num_active'], len(flat['seeds'])
    if trials:
        if devices and trials % devices:
            yield f'parallel.devices={devices} does not divide the {trials} trials of config.seeds; use a divisor'
        return
    if devices > 1 and (reason := indivisible(flat)):
        yield f'parallel.devices={devices}: {reason}; use 1'
    if devices > active:
        yield f'parallel.devices={devices} is more than federation.num_active={active}; use at most {active}'


def _faults_of_processes(flat: dict[str, Any]) -> Iterator[str]:
    """Yields faults in the keys of processes; only `process_id` differs between them, so all find the same ones."""
    coordinator, count, process_id = (
        flat[f'parallel.{name}'] for name in ('coordinator', 'num_processes', 'process_id')
    )
    given = f"parallel.coordinator='{coordinator}'"
    named = coordinator not in ('', hosts.AUTO)
    address = re.fullmatch(r'\S+:(\d{1,5})', coordinator)
    if named and not (address and 0 < int(address[1]) < 2**16):
        yield f"{given} must be HOST:PORT of process 0, with a port of 1 to 65535, 'auto' or ''"
    if not named and (count, process_id) != (1, 0):
        yield f'parallel.num_processes={count} and parallel.process_id={process_id} need parallel.coordinator=HOST:PORT'
    if process_id >= count:
        yield f'parallel.process_id={process_id} is out of range for parallel.num_processes={count}'
    if coordinator and flat['seeds']:
        yield f'{given}: the trials of config.seeds run in one process; give one seed'
    if coordinator and (reason := indivisible(flat)):
        yield f'{given}: {reason}; use one process'
    if (devices := flat['parallel.devices']) % count:
        yield f'parallel.devices={devices} cannot be shared equally by {count} processes; use 0 for all, or a multiple'


# --- the method


def _faults_of_method(method: Method, flat: Mapping[str, Any]) -> Iterator[str]:
    for key, value in unused(method).items():
        if key in flat and flat[key] not in (value, 'auto'):  # 'auto' is resolved to the default
            advice = f'at {value}' if value != '' else 'empty'
            code = ", or leave out ':code'" if flat['k_s_rule'] == 'code' else ''
            yield f'{key}={flat[key]} is not an option of {method.name}; leave it {advice}{code}'
    objective, default = flat['local.objective'], hparams.KEYS['pseudo_labels'].default
    if flat['pseudo_labels'] != default and method.labels_alone(flat):
        leave = f"leave it at '{default}'"
        yield f"pseudo_labels='{flat['pseudo_labels']}': clients with local.objective='{objective}' make none; {leave}"
    of_objectives = {'uda': 'uda', 'mean teacher': 'mean_teacher'}  # feature -> the objective that reads its keys
    for key, field in hparams.KEYS.items() if 'objective' in method.uses else ():
        needed = of_objectives.get(field.metadata['feature'], objective)
        if objective != needed and flat[key] != field.default:
            yield f"{key}={flat[key]} needs local.objective='{needed}', not '{objective}'"
    if (steps := flat['local.steps']) not in ('auto', method.steps) and not flat['local.epochs']:
        yield f"local.steps='{steps}' counts the iterations of passes; set local.epochs, or leave it at 'auto'"


def _faults_of_tasks(method: Method, flat: Mapping[str, Any]) -> Iterator[str]:
    """Yields faults of data and model, which must be dense exactly where the method trains dense tasks."""
    name, named, dense = flat['model.name'], tuple(flat['data.tasks']), models.DENSE_ARCHITECTURES
    if not method.dense:
        if name in dense:
            use = ', '.join(models.ARCHITECTURES)
            yield f"model.name='{name}' outputs maps, but {method.name} classifies images; use one of {use}"
        return
    if not named:
        yield (
            f'data.tasks is empty, but {method.name} trains dense tasks: name some, such as '
            '--config.data.tasks=semseg,depth, with a data set that has them (configs/digit_scenes.py)'
        )
    for task in named:
        if task not in DENSE:
            yield f"data.tasks: '{task}' is unknown; {use_one_of(task, DENSE)}"
        if named.count(task) > 1:
            yield f"data.tasks names '{task}' twice; name each task once"
    if every := flat['diagnostics_every']:
        yield f'diagnostics_every={every}: diagnostics are of class labels, but {method.name} trains dense tasks; use 0'
    if name not in dense:
        use = use_one_of(name, dense)
        yield f"model.name='{name}' classifies images, but {method.name} needs a model that outputs maps; {use}"


def _faults_of_labels(method: Method, flat: Mapping[str, Any]) -> Iterator[str]:
    """Yields faults of labels, which must exist where the method trains on them."""
    name, total, client_labels = method.name, flat['data.num_labeled'], flat['data.client_labels']
    mu, k_s, labels_only = flat['federation.mu'], flat['k_s'], method.labels_alone(flat)
    who = "local.objective='supervised'" if 'objective' in method.uses else name  # subject of messages on `labels_only`
    needs = ', '.join(f'{key}={value}' for key, value in method.needs.items())
    needs = f' ({name} needs {needs})' if needs else ''
    labels_at_clients = client_labels > 0 and mu > 0
    give = 'give clients labels (data.client_labels, federation.mu)'
    if method.server == 'none' and k_s:
        yield f'k_s={k_s}: {name} trains only at the clients, and the server has no images; use k_s=0{needs}'
    if labels_only and not client_labels:
        yield f'data.client_labels=0: {who} trains only on labels at the clients; use -1 (or a number){needs}'
    if method.dense and client_labels != -1:
        yield f'data.client_labels={client_labels}: clients of {name} know the truth of all their images; use -1'
    if k_s == 0 and method.server == 'needed':
        yield f'k_s=0: {name} learns from labels at the server and needs K_s of at least 1'
    if client_labels > total or (client_labels == total and k_s):
        hint = ' (or k_s=0, if the method can do without a server phase)' if client_labels == total else ''
        yield f'data.client_labels={client_labels} leaves the server none of data.num_labeled={total}; use fewer{hint}'
    if labels_only and client_labels > 0 and mu == 0:
        yield f'federation.mu=0 ignores the labels that {who} trains on; use 1 or more'
    if client_labels == -1 and not labels_only:
        yield f'data.client_labels=-1: clients of {name} also train on unlabeled images; give a number'
    if not labels_only and k_s == 0 and not labels_at_clients:
        yield f'k_s=0 leaves no label to learn from, as clients have none; use at least 1, or {give}'
    if (tsa := flat['uda.tsa']) != 'off' and not labels_at_clients:
        yield f"uda.tsa='{tsa}' anneals labels at the clients, but they have none; use 'off', or {give}"
    if not labels_only and labels_at_clients and (size := flat['batch_size']) % (1 + mu):
        yield f'batch_size={size} cannot be split 1 : {mu} (federation.mu) by labels; use a multiple of {1 + mu}'
