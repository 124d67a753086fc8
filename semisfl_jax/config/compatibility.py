"""Which options go with which method, and which labels a method needs; anything else is a one-line error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semisfl_jax import algorithms, models
from semisfl_jax.algorithms.method import FEATURES, Method
from semisfl_jax.algorithms.registry import option_fields
from semisfl_jax.config import keys, presets
from semisfl_jax.core.errors import UserError, several, use_one_of
from semisfl_jax.core.hparams import shared_defaults
from semisfl_jax.tasks import DENSE


def unused(method: Method) -> dict[str, Any]:
    """Keys that a method does not use, with their defaults (flat, lists for tuples): those of features it lacks, and
    the options of other methods except those that any run may set. Changing one of them is an error."""
    defaults = keys.defaults() | shared_defaults()
    features = {key: defaults[key] for name, used in FEATURES.items() if name not in method.uses for key in used}
    options = {
        key: field.default
        for key, field in option_fields().items()
        if key.partition('.')[0] != method.option_group and not field.metadata['ignorable']
    }
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (features | options).items()}


def check(flat: dict[str, Any]) -> None:
    """Checks a flat configuration whose values are each valid on their own.

    Raises:
      UserError: for the first value that is incompatible with the method or with another value.
    """
    presets.check(flat)
    method = algorithms.get(flat['algorithm'])
    _check_unused(method, flat)
    _check_tasks(method, flat)
    _check_labels(method, flat)
    method.check(flat)
    if flat['sampling'] == 'replicated' and flat['local.epochs']:
        raise UserError(
            f"config.sampling='replicated' repeats a client's images to fill k_u iterations, but with "
            f"local.epochs={flat['local.epochs']} clients make whole passes; use sampling='epochs' or local.epochs=0"
        )
    if flat['optimizer'] == 'adam' and flat['nesterov']:
        raise UserError("config.nesterov=True belongs to optimizer='sgd'; with 'adam' use nesterov=False")


def _check_unused(method: Method, flat: Mapping[str, Any]) -> None:
    for key, default in unused(method).items():
        if key in flat and flat[key] not in (default, 'auto'):  # 'auto' is resolved to the default
            advice = f'at {default}' if default != '' else 'empty'
            raise UserError(f'config.{key}={flat[key]} is not an option of {method.name}; leave it {advice}')
    objective, shared = flat['local.objective'], shared_defaults()
    if flat['pseudo_labels'] != shared['pseudo_labels'] and method.labels_alone(flat):
        raise UserError(
            f"config.pseudo_labels='{flat['pseudo_labels']}': clients with local.objective='{objective}' make no "
            f"pseudo-labels; leave it at '{shared['pseudo_labels']}', or use another objective"
        )
    for feature, needed in (('uda', 'uda'), ('mean teacher', 'mean_teacher')):
        for key in FEATURES[feature] if feature in method.uses and objective != needed else ():
            if flat[key] != shared[key]:
                raise UserError(f"config.{key}={flat[key]} needs local.objective='{needed}', not '{objective}'")
    if flat['local.steps'] not in ('auto', method.steps) and not flat['local.epochs']:
        raise UserError(
            f"config.local.steps='{flat['local.steps']}' counts the iterations of passes, but with local.epochs=0 a "
            "client makes k_u of them; set local.epochs, or leave it at 'auto'"
        )


def _check_tasks(method: Method, flat: Mapping[str, Any]) -> None:
    """Checks that data and model of a method of dense tasks are dense, and no other's model."""
    name, named = flat['model.name'], tuple(flat['data.tasks'])
    if not method.dense:
        if name in models.DENSE_ARCHITECTURES:
            raise UserError(
                f"config.model.name='{name}' outputs maps, but {method.name} classifies images; use one of "
                + ', '.join(models.ARCHITECTURES)
            )
        return
    if not named:
        raise UserError(
            f'config.data.tasks is empty, but {method.name} trains dense tasks: name some, such as '
            "--config.data.tasks=\"('semseg','depth')\", with a data set that has them (configs/digit_scenes.py)"
        )
    for task in named:
        if task not in DENSE:
            raise UserError(
                f"config.data.tasks: '{task}' is unknown; {several('data.tasks', task) or use_one_of(task, DENSE)}"
            )
        if named.count(task) > 1:
            raise UserError(f"config.data.tasks names '{task}' twice; name each task once")
    if flat['diagnostics_every']:
        raise UserError(
            f'config.diagnostics_every={flat["diagnostics_every"]}: diagnostics are of class labels, but {method.name} '
            'trains dense tasks; use 0'
        )
    if name not in models.DENSE_ARCHITECTURES:
        raise UserError(
            f"config.model.name='{name}' classifies images, but {method.name} needs a model that outputs maps; "
            + use_one_of(name, models.DENSE_ARCHITECTURES)
        )


def _check_labels(method: Method, flat: Mapping[str, Any]) -> None:
    """Checks that labels exist where the method trains on them."""
    name, total, client_labels = method.name, flat['data.num_labeled'], flat['data.client_labels']
    mu, k_s, labels_only = flat['federation.mu'], flat['k_s'], method.labels_alone(flat)
    chosen = 'objective' in method.uses  # clients train on labels alone by choice, not by method
    if method.server == 'none' and k_s:
        raise UserError(
            f'config.k_s={k_s}: {name} trains only at the clients, and the server has no images; use k_s=0'
            + _needs(method)
        )
    if labels_only and not chosen and not client_labels:
        raise UserError(
            f'config.data.client_labels=0: {name} trains only on labels at the clients, but they have none; use '
            'data.client_labels=-1 (or a number)' + _needs(method)
        )
    if k_s == 0 and method.server == 'needed':
        raise UserError(f'config.k_s=0: {name} learns from labels at the server and needs K_s of at least 1')
    if client_labels > total or (client_labels == total and k_s):
        hint = ' (or k_s=0, if the method can do without a server phase)' if client_labels == total else ''
        raise UserError(
            f'config.data.client_labels={client_labels} leaves the server none of the data.num_labeled={total} labels; '
            f'use fewer{hint}'
        )
    if labels_only and client_labels == 0:
        raise UserError(
            f"config.local.objective='supervised': no client has a label (data.client_labels=0) for {name} to train "
            'on; set data.client_labels (-1: all), use another objective, or a method that trains only at the server'
        )
    if labels_only and client_labels > 0 and mu == 0:
        who = "local.objective='supervised'" if chosen else name
        raise UserError(f'config.federation.mu=0 ignores the labels that {who} trains on; use 1 or more')
    if client_labels == -1 and not labels_only:
        raise UserError(
            'config.data.client_labels=-1, all labels at the clients, is for clients that train only on labels '
            f'({_trained_on_labels_alone()}); those of {name} also train on unlabeled images, so give a number'
        )
    labels_at_clients = client_labels > 0 and mu > 0
    if not labels_only and k_s == 0 and not labels_at_clients:
        raise UserError(
            'config.k_s=0 leaves no label to learn from, as clients have none; use at least 1, or give clients labels '
            '(data.client_labels, federation.mu)'
        )
    if flat['uda.tsa'] != 'off' and not labels_at_clients:
        raise UserError(
            f"config.uda.tsa='{flat['uda.tsa']}' anneals labels at the clients, but they have none; use 'off', or give "
            'clients labels (data.client_labels, federation.mu)'
        )
    if not labels_only and labels_at_clients and flat['batch_size'] % (1 + mu):
        raise UserError(
            f'config.batch_size={flat["batch_size"]} cannot be split 1 : {mu} (federation.mu) '
            f'into labeled and unlabeled images; use a multiple of {1 + mu}'
        )


def _needs(method: Method) -> str:
    needs = ', '.join(f'{key}={value}' for key, value in method.needs.items())
    return f' ({method.name} needs {needs})' if needs else ''


def _trained_on_labels_alone() -> str:
    """The methods whose clients can train on labels alone, and the option that each needs for it."""
    supervised = {'local.objective': 'supervised'}
    methods = []
    for method in algorithms.METHODS.values():
        if 'objective' in method.uses:
            methods += [f"{method.name} with local.objective='supervised'"] if method.labels_alone(supervised) else []
        elif method.labels_alone(supervised):
            methods.append(method.name)
    return ', '.join(methods)
