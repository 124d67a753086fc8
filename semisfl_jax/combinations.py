"""Which options go with which method, and which labels a method needs. Everything else ends in one line."""

from __future__ import annotations

import dataclasses
from typing import Any

from semisfl_jax import algorithms, presets
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import FedMatch, HParams, SemiFL, trains_on_labels_alone

# Options that a method has no use for. At their defaults they say nothing; changed, they are refused.
_CLUSTERING = (
    'clustering_weight',
    'contrastive_weight',
    'temperature',
    'supervised_references',
    'queue',
    'queue_empty_slots',
    'server_teacher_bn',
)
_CLIENT_TEACHER = ('client_teacher_ema', 'client_teacher_bn')
_SPLIT = ('model.split_index', *_CLUSTERING, *_CLIENT_TEACHER)
_TEACHER = ('ema_decay', 'ema_warmup')
_LOCAL = ('local.epochs', 'local.weighting', 'local.optimizer_state')
_OBJECTIVE = ('local.objective', 'local.prox')
_UDA = ('uda.temperature', 'uda.tsa')
_FEDSWITCH = ('fedswitch.mode', 'fedswitch.beta_iid')
_SPLITFED = ('splitfed.version',)
_FEDMATCH = tuple(f'fedmatch.{field.name}' for field in dataclasses.fields(FedMatch))
# Not batch_norm_data, which a data set's configuration sets where its images stay on the host.
_SEMIFL = tuple(f'semifl.{field.name}' for field in dataclasses.fields(SemiFL) if field.name != 'batch_norm_data')
_OTHERS = (*_SPLITFED, *_FEDMATCH, *_SEMIFL)
_FOREIGN = dict.fromkeys(algorithms.NAMES, (*_LOCAL, *_OBJECTIVE, *_UDA, *_FEDSWITCH, *_OTHERS)) | {
    'fedavg': (*_SPLIT, *_TEACHER, 'local.prox', *_FEDSWITCH, *_OTHERS),
    'fedprox': (*_SPLIT, *_TEACHER, *_FEDSWITCH, *_OTHERS),
    'fedmatch': (*_SPLIT, *_TEACHER, 'consistency_weight', *_OBJECTIVE, *_UDA, *_FEDSWITCH, *_SPLITFED, *_SEMIFL),
    'fedswitch': (*_SPLIT, *_OBJECTIVE, *_UDA, *_OTHERS),
    'fedswitch_sl': (*_CLUSTERING, *_LOCAL, *_OBJECTIVE, *_UDA, *_OTHERS),
    'splitfed': (
        *(*_CLUSTERING, *_CLIENT_TEACHER, *_TEACHER, *_OBJECTIVE, *_UDA, *_FEDSWITCH, *_FEDMATCH, *_SEMIFL),
        'local.optimizer_state',
        'pre_rounds',
    ),
    'semifl': (*_SPLIT, *_TEACHER, 'consistency_weight', *_OBJECTIVE, *_UDA, *_FEDSWITCH, *_SPLITFED, *_FEDMATCH)
    + ('sampling',),  # its clients read passes over their confident images
}


def _defaults() -> dict[str, Any]:
    defaults = {'model.split_index': None}
    for field in dataclasses.fields(HParams):
        if dataclasses.is_dataclass(field.default):
            defaults |= {f'{field.name}.{key}': value for key, value in dataclasses.asdict(field.default).items()}
        else:
            defaults[field.name] = field.default
    return defaults


def check(flat: dict[str, Any]) -> None:
    """Checks a flat configuration whose values are each valid on their own.

    Raises:
      UserError: the first value that does not go with the method or with another value.
    """
    presets.check(flat)
    _check_foreign(flat)
    _check_split(flat)
    _check_labels(flat)
    _check_helpers(flat)
    if flat['algorithm'] == 'semifl':
        _check_semifl(flat)
    if flat['sampling'] == 'replicated' and flat['local.epochs']:
        raise UserError(
            f"config.sampling='replicated' repeats a client's images until they last for k_u iterations, and with "
            f"local.epochs={flat['local.epochs']} whole passes are read; use sampling='epochs' or local.epochs=0"
        )
    if flat['optimizer'] == 'adam' and flat['nesterov']:
        raise UserError("config.nesterov=True belongs to optimizer='sgd'; with 'adam' use nesterov=False")


def _check_foreign(flat: dict[str, Any]) -> None:
    name, defaults = flat['algorithm'], _defaults()
    for key in _FOREIGN.get(name, ()):  # a method from outside says itself what it has no use for
        if flat[key] not in (defaults[key], 'auto'):  # 'auto' is resolved to the default
            raise UserError(f'config.{key}={flat[key]} is no option of {name}; leave it at {defaults[key]}')
    if name in ('fedavg', 'fedprox') and flat['local.objective'] != 'uda':
        for key in _UDA:
            if flat[key] != defaults[key]:
                raise UserError(
                    f"config.{key}={flat[key]} needs local.objective='uda', which is '{flat['local.objective']}'"
                )
    key, mode = 'fedswitch.beta_iid', flat['fedswitch.mode']
    if mode != 'switch' and flat[key] != defaults[key]:
        raise UserError(
            f"config.{key}={flat[key]} needs fedswitch.mode='switch', which is '{mode}'; leave it at {defaults[key]}"
        )


def _check_split(flat: dict[str, Any]) -> None:
    """What the split baselines leave no room for."""
    name, version = flat['algorithm'], flat['splitfed.version']
    if name == 'fedswitch_sl' and flat['fedswitch.mode'] == 'student' and flat['client_teacher_ema']:
        raise UserError(
            "config.client_teacher_ema=True moves a teacher that fedswitch.mode='student' never asks; "
            'use client_teacher_ema=False or another mode'
        )
    if name == 'splitfed' and version == 'v2':
        for key, value in (('federation.client_chunk', 0), ('federation.client_map', 'auto')):
            if flat[key] != value:
                raise UserError(
                    f"config.{key}={flat[key]}: splitfed.version='v2' trains one client after another; "
                    f'leave it at {value}'
                )


def _check_helpers(flat: dict[str, Any]) -> None:
    helpers, persist = flat['fedmatch.helpers'], flat['fedmatch.helpers_persist']
    clients, every = flat['federation.num_clients'], flat['fedmatch.helper_every']
    if flat['algorithm'] != 'fedmatch':
        return
    if helpers >= clients:
        raise UserError(
            f'config.fedmatch.helpers={helpers} is more than the other clients there are '
            f'(federation.num_clients={clients}); use at most {clients - 1}'
        )
    if persist and (not helpers or every == 1):
        raise UserError(
            f'config.fedmatch.helpers_persist=True keeps helpers for rounds without new ones, and with '
            f'fedmatch.helpers={helpers}, fedmatch.helper_every={every} there is nothing to keep; use False'
        )


def _check_semifl(flat: dict[str, Any]) -> None:
    if flat['local.epochs'] and flat['semifl.max_passes'] != SemiFL.max_passes:
        raise UserError(
            f'config.semifl.max_passes={flat["semifl.max_passes"]} bounds the k_u iterations, and with '
            f'local.epochs={flat["local.epochs"]} that number of passes is made; leave it at {SemiFL.max_passes}'
        )
    if flat['data.client_labels'] > 0 and flat['federation.mu'] > 0:
        raise UserError(
            f'config.data.client_labels={flat["data.client_labels"]}: clients of semifl have no labels; use 0 (or '
            'federation.mu=0, which ignores them)'
        )
    if flat['data.residency'] == 'host' and flat['semifl.batch_norm_data'] == 'all':
        raise UserError(
            "config.semifl.batch_norm_data='all' needs the images of all clients on the device, and with "
            "data.residency='host' there are those of the active ones; use batch_norm_data='server' or "
            "residency='device'"
        )


def _check_labels(flat: dict[str, Any]) -> None:
    """Whether there are labels where the method trains on them."""
    name, total, client_labels = flat['algorithm'], flat['data.num_labeled'], flat['data.client_labels']
    mu, k_s, objective = flat['federation.mu'], flat['k_s'], flat['local.objective']
    alone = trains_on_labels_alone(name, objective)
    if name == 'splitfed' and (k_s or not client_labels):
        wrong, why = (
            (f'k_s={k_s}', 'the server has no images of its own')
            if client_labels
            else ('data.client_labels=0', 'they have none')
        )
        raise UserError(
            f'config.{wrong}: splitfed trains on labels at the clients alone, and {why}; '
            'use data.client_labels=-1 (or a number) with k_s=0'
        )
    if k_s == 0 and name not in ('fedavg', 'fedprox', 'fedmatch', 'splitfed'):
        raise UserError(f'config.k_s=0: {name} learns from labels at the server and needs K_s of at least 1')
    if client_labels > total or (client_labels == total and k_s):
        hint = ' (or k_s=0, where the method goes without a server phase)' if client_labels == total else ''
        raise UserError(
            f'config.data.client_labels={client_labels} leaves the server none of the data.num_labeled={total} labels; '
            f'use fewer{hint}'
        )
    if alone and client_labels == 0:
        raise UserError(
            f"config.local.objective='supervised': no client has a label (data.client_labels=0) for {name} to train "
            "on; set data.client_labels (-1: all), use 'fixmatch' or 'uda', or algorithm='supervised_only' for the "
            'server alone'
        )
    if alone and client_labels > 0 and mu == 0:
        who = name if name == 'splitfed' else "local.objective='supervised'"
        raise UserError(f'config.federation.mu=0 ignores the labels that {who} trains on; use 1 or more')
    if client_labels == -1 and not alone:
        raise UserError(
            f"config.data.client_labels=-1, all labels at the clients, is for local.objective='supervised' of fedavg "
            f'and fedprox, and for splitfed; {name} leaves them unlabelled images, so give a number'
        )
    labels_at_clients = client_labels > 0 and mu > 0
    if not alone and k_s == 0 and not labels_at_clients:
        raise UserError(
            'config.k_s=0 leaves no label to learn from: clients have none (data.client_labels, federation.mu)'
        )
    if flat['uda.tsa'] != 'off' and not labels_at_clients:
        raise UserError(
            f"config.uda.tsa='{flat['uda.tsa']}' anneals labels at the clients, and there are none "
            '(data.client_labels, federation.mu)'
        )
    if not alone and labels_at_clients and flat['batch_size'] % (1 + mu):
        raise UserError(
            f'config.batch_size={flat["batch_size"]} cannot be split 1 : {mu} (federation.mu) '
            f'into labelled and unlabelled images; use a multiple of {1 + mu}'
        )
