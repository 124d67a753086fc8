"""Keys that the method or another key makes idle: a command that sets one of them anyway is told so.

They are not errors, because a study or a configuration file may change the one and leave the other as it is, or hold
the views and the threshold of all methods that it is used with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax.algorithms.method import FEATURES
from semisfl_jax.algorithms.registry import is_ours, option_fields
from semisfl_jax.config import failures
from semisfl_jax.config.resolve import flatten
from semisfl_jax.core.errors import warn
from semisfl_jax.data import folder, partition_settings, pascal_context, sources
from semisfl_jax.data.federation import draw_cohort
from semisfl_jax.models import zoo
from semisfl_jax.models.layers import FLOAT32

_OF_PARTITION = ('min_images', 'max_images', 'min_labeled', 'classes_per_client', 'labeled_alpha')
_OF_LABELS = ('labeled_partition', 'ignored_labeled')
# Of strong views; labeled images have these, too, unless `augment.supervised` is 'weak'
_STRONG = ('augment.randaugment', 'augment.operations', 'augment.magnitude', 'augment.cutout')
# Of the keys that only some rules for unlabeled images read, those that each value of `local.objective` does
_OF_OBJECTIVE: dict[str, tuple[str, ...]] = {
    'supervised': (),
    'fixmatch': ('threshold', 'consistency_weight', *_STRONG),
    'uda': ('threshold', 'consistency_weight', *_STRONG),
    'pseudo_label': ('threshold', 'consistency_weight', 'local.ramp_rounds'),
    'mean_teacher': ('consistency_weight', 'local.ramp_rounds', 'local.input_noise'),
}
_OF_OBJECTIVES = tuple(dict.fromkeys(key for read in _OF_OBJECTIVE.values() for key in read))
# Idle where no pseudo-label counts: they multiply 0, or change labels alone
_OF_PSEUDO_LABELS = (
    'uda.temperature',
    'local.teacher_decay',
    'local.ramp_rounds',
)
_WEIGHTS = ('consistency_weight', 'clustering_weight')  # likewise, but a split method's labeled rows have them, too
# What a method without clients accepts so that changing `algorithm` alone gives the lower bound of a configuration
_OF_CLIENTS = ('batch_size', *FEATURES['clustering'], *FEATURES['client teacher'])
_ALSO_OF_K_S = ('k_u', 'pre_rounds', 'data.num_unlabeled')  # of clients and of the rules by which K_s adapts


def warn_ignored_keys(config: ConfigDict, given: Iterable[str]) -> None:
    """Warns of every dotted key of `given` that has no effect in a configuration, in a line for each reason, of clients
    that never train, and of a trace in which no active client fails."""
    flat, idle = flatten(config), find(config)
    if algorithms.get(config.algorithm).clients and config.pre_rounds >= config.rounds:
        warn(
            f'config.pre_rounds={config.pre_rounds} leaves the clients none of rounds={config.rounds}: none of them '
            'ever trains; use fewer of them, or more rounds'
        )
    if config.failures.trace and not _fails_somebody(config):
        warn(
            f'config.failures.trace={config.failures.trace} has no effect: no line names a client that is active in '
            f'its round, up to round {config.rounds}; data.draw_cohort says which are (docs/costs.md)'
        )
    told: dict[str, list[str]] = {}
    for key in given:
        if key in idle:
            told.setdefault(idle[key], []).append(f'config.{key}={flat[key]}')
    for why, named in told.items():
        warn(f'{", ".join(named)} {"has" if len(named) == 1 else "have"} no effect: {why}')


def _fails_somebody(config: ConfigDict) -> bool:
    """Whether a line of the trace names an active client, of any seed."""
    fed, path = config.federation, config.failures.trace
    sizes = fed.num_clients, fed.num_active, len(config.data.tasks) or 1
    return any(
        set(draw_cohort(seed, index, *sizes).tolist()) & fails.keys()
        for index, fails in failures.read_trace(path, failures.hash_of(path)).items()
        for seed in config.seeds or (config.seed,)
        if index < config.rounds
    )


def find(config: ConfigDict) -> dict[str, str]:
    """The idle keys of a configuration (checked), and why they are."""
    flat = flatten(config)
    method = algorithms.get(flat['algorithm'])
    idle = {
        **dict(_idle_in_method(flat, method)),
        **dict(_idle_in_partition(config)),
        **dict(_idle_in_data(flat)),
        **dict(_idle_by_keys(flat, method)),
    }
    if flat['diagnostics_every']:  # which apply it in any case
        idle.pop('threshold', None)
    return idle


def _idle_in_method(flat: dict[str, Any], method: algorithms.Method) -> Iterator[tuple[str, str]]:
    """What a method of the package does not read; one of a user's own may read anything that it accepts."""
    options = [key for key in option_fields() if key in flat and key.partition('.')[0] != method.option_group]
    yield from ((key, f'it is not an option of {method.name}') for key in options)
    if not is_ours(method):
        return
    name, reads = method.name, _reads(flat, method)
    unread = [key for key in _OF_OBJECTIVES if key not in reads]
    if flat['augment.supervised'] == 'strong':
        unread = [key for key in unread if key not in _STRONG]
    by = f"local.objective='{flat['local.objective']}'" if 'objective' in method.uses else name
    strong = f"{by} has no strong views beside augment.supervised='weak'"
    yield from ((key, strong if key in _STRONG else f'{by} does not read it') for key in unread)
    for keys, is_idle, why in (
        (('queue_size', 'queue_stride'), not method.clusters, f'{name} has no memory queue'),
        (('model.projection', 'model.projection_dim'), not method.clusters, f'{name} has no projection head'),
        ((*_OF_CLIENTS, *_group(flat, 'federation')), not method.clients, f'{name} has no clients'),
        (_ALSO_OF_K_S, not method.clients and not _adapts_k_s(flat, method), f'{name} has no clients'),
    ):
        if is_idle:
            yield from ((key, why) for key in keys)


def _reads(flat: dict[str, Any], method: algorithms.Method) -> tuple[str, ...]:
    """Those of _OF_OBJECTIVES that a method reads."""
    if 'objective' in method.uses:
        return _OF_OBJECTIVE[flat['local.objective']]
    if not method.clients or method.labels_alone(flat) or method.counts_all:
        return ()
    return _OF_OBJECTIVES


def _idle_by_keys(flat: dict[str, Any], method: algorithms.Method) -> Iterator[tuple[str, str]]:
    pseudo_labels, k_s = flat['pseudo_labels'], flat['k_s']
    cost, no_norm = _group(flat, 'cost'), f"model.name='{flat['model.name']}' has no BatchNorm"
    if flat['failures.deadline_seconds']:  # the other costs decide which clients are late
        cost = ['cost.server_teraflops']
    uncounted = "pseudo_labels='none' leaves no pseudo-label that counts"
    no_labels = f"pseudo_labels='{pseudo_labels}' needs none"
    for keys, is_idle, why in (
        (('queue_size', 'queue_empty_slots'), flat['queue'] == 'off', "queue='off'"),
        (('queue_stride',), flat['queue'] != 'two_level', f"queue='{flat['queue']}'"),
        (('threshold',), pseudo_labels != 'method', no_labels),
        (_OF_PSEUDO_LABELS, pseudo_labels == 'none', uncounted),
        (_WEIGHTS, pseudo_labels == 'none' and not (method.cuts and flat['data.client_labels']), uncounted),
        (
            ('k_s_rule',),
            flat['k_s_rule'] not in ('auto', 'fixed') and not _adapts_k_s({**flat, 'k_s_rule': 'paper'}, method),
            f"pseudo_labels='{pseudo_labels}' keeps K_s as it begins" if k_s else 'k_s=0',
        ),
        (
            _group(flat, 'frequency'),
            not _adapts_k_s(flat, method),
            f"k_s_rule='{flat['k_s_rule']}' of {method.name} keeps K_s as it begins",
        ),
        (('server_batch_size',), k_s == 0, 'k_s=0: the server has no images'),
        (cost, not flat['cost.enabled'], 'cost.enabled=False'),
        (
            ('k_u',),
            flat['local.epochs'] and not _adapts_k_s(flat, method),  # K_min is a share of K_u
            f'clients make local.epochs={flat["local.epochs"]} passes',
        ),
        (('nesterov',), flat['momentum'] == 0, 'momentum=0'),
        (('local.optimizer_state',), flat['optimizer'] == 'sgd' and flat['momentum'] == 0, 'momentum=0'),
        (('federation.mu',), method.labels_alone(flat), 'the clients train on labeled images alone'),
        (('model.projection_dim',), flat['model.projection'] == 'none', "model.projection='none'"),
        (('client_teacher_bn',), _lacks(flat['model.name'], 'norm', 'dropout'), f'{no_norm} and no dropout'),
        (('model.batch_norm_variance',), _lacks(flat['model.name'], 'norm'), no_norm),
        (
            ('semifl.batch_norm_data',),
            _lacks(flat['model.name'], 'norm') and flat['data.residency'] != 'host',  # which 'all' contradicts
            no_norm,
        ),
        (('augment.magnitude',), not flat['augment.operations'], 'augment.operations=0'),
        (('parallel.trials',), not flat['seeds'], 'it is about several seeds (seeds)'),
    ):
        if is_idle:
            yield from ((key, why) for key in keys)
    for key, field in option_fields().items():
        if key.partition('.')[0] == method.option_group:
            for other, values in field.metadata['idle'].items():
                if flat[other] in (values if isinstance(values, tuple) else (values,)):
                    yield key, f'{other}={flat[other]!r}'


def _idle_in_data(flat: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Where the images come from; `data.load` refuses some that would be idle."""
    name = sources.ALIASES.get(flat['data.name'], flat['data.name'])
    idle: tuple[str, ...] = ()
    why = f"data.name='{name}' does not read it"
    if flat['data.fake']:
        idle, why = ('data_dir', 'cache_dir', 'image_folder', 'class_list'), 'the images are synthetic (data.fake)'
    elif name in sources.READERS:
        idle = ('data_dir', 'cache_dir')
    elif name == pascal_context.NAME:
        idle = ('data_dir',)
    elif flat['data.image_folder'] and name in (folder.FOLDER, folder.IMAGE100, folder.CINIC10):
        idle, why = ('data_dir',), 'the images are those in data.image_folder'
    yield from ((f'data.{key}', why) for key in idle)


def _idle_in_partition(config: ConfigDict) -> Iterator[tuple[str, str]]:
    if config.data.partition_file:
        for key in (*_OF_PARTITION, *_OF_LABELS, 'alpha', 'partition', 'mismatch'):
            yield f'federation.{key}', 'the split is that of data.partition_file'
        return
    used, fed = partition_settings.settings(config), config.federation
    rules = f"federation.partition='{used['partition']}'"
    if 'labeled_partition' in used:
        rules += f" and federation.labeled_partition='{used['labeled_partition']}'"
    if used['alpha'] is None:
        yield 'federation.alpha', f'{rules} draws from no Dirichlet distribution'
    for key in _OF_PARTITION:
        if key not in used:
            yield f'federation.{key}', f'{rules} does not read it'
    if not config.data.client_labels:
        for key in (*_OF_LABELS, 'mu'):
            yield f'federation.{key}', 'no labels are at the clients (data.client_labels)'
    else:
        where = f'data.client_labels={config.data.client_labels} and federation.mu={fed.mu}'
        for key in _OF_LABELS:
            if key not in used:
                yield f'federation.{key}', f'{where} do not read it'
    if not used['num_labeled']:
        for key in ('num_labeled', 'labeled_split'):
            yield f'data.{key}', 'all images are at the clients, with their labels'


def _group(flat: dict[str, Any], name: str) -> list[str]:
    return [key for key in flat if key.startswith(f'{name}.') and key != 'cost.enabled']


def _adapts_k_s(flat: dict[str, Any], method: algorithms.Method) -> bool:
    """Whether K_s may change in the course of a run."""
    by_rule = method.adapts_k_s if flat['k_s_rule'] == 'auto' else flat['k_s_rule'] != 'fixed'
    return by_rule and flat['pseudo_labels'] != 'none' and flat['k_s'] > 0


def _lacks(model: str, *parts: str) -> bool:
    """Whether no layer of a model for classification has any of `parts`, 'norm' (BatchNorm) and 'dropout'; False for a
    user's own, which may have them anywhere."""
    make = zoo.ARCHITECTURES.get(model)
    if make is None or make.__module__ != zoo.__name__:
        return False
    return not any(getattr(layer(name='probe'), part, 0) for layer in make(1, FLOAT32).layers for part in parts)
