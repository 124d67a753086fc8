"""Keys that another key makes idle: a command that sets one of them anyway is told so.

They are not errors, because a study or a configuration file may change the one and leave the other as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms, failures
from semisfl_jax.config.resolve import flatten
from semisfl_jax.data import cinic10, image100, own_folder, partition_settings, pascal_context, sources
from semisfl_jax.data.cohort import draw_cohort
from semisfl_jax.errors import warn
from semisfl_jax.models import zoo
from semisfl_jax.models.layers import FLOAT32

_OF_PARTITION = ('min_images', 'max_images', 'min_labeled', 'classes_per_client', 'labeled_alpha')
_OF_LABELS = ('labeled_partition', 'ignored_labeled')


def tell(config: ConfigDict, given: Iterable[str]) -> None:
    """Warns of every dotted key of `given` that has no effect in a configuration, of clients that never train, and of
    a trace in which no active client fails.

    What 'auto' stands for depends on the method, which may be changed alone, so it makes no key idle.
    """
    flat, idle = flatten(config), dict(_idle(config))
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
    for key in given:
        if key in idle:
            warn(f'config.{key}={flat[key]} has no effect: {idle[key]}')


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


def _idle(config: ConfigDict) -> Iterator[tuple[str, str]]:
    """The idle keys, and why they are."""
    yield from _idle_in_partition(config)
    flat = flatten(config)
    yield from _idle_in_data(flat)
    method, pseudo_labels = algorithms.get(flat['algorithm']), flat['pseudo_labels']
    cost, no_norm = _group(flat, 'cost'), f"model.name='{flat['model.name']}' has no BatchNorm"
    if flat['failures.deadline_seconds']:  # the other costs decide which clients are late
        cost = ['cost.server_teraflops']
    for keys, is_idle, why in (
        (('queue_size', 'queue_empty_slots'), flat['queue'] == 'off', "queue='off'"),
        (('queue_stride',), flat['queue'] != 'two_level', f"queue='{flat['queue']}'"),
        (
            ('threshold',),
            pseudo_labels != 'method' and not flat['diagnostics_every'],  # which apply it in any case
            f"pseudo_labels='{pseudo_labels}' needs none",
        ),
        (_group(flat, 'frequency'), flat['k_s_rule'] == 'fixed', "k_s_rule='fixed'"),
        (cost, not flat['cost.enabled'], 'cost.enabled=False'),
        (
            ('k_u',),
            flat['local.epochs'] and not _adapts_k_s(flat, method),  # K_min is a share of K_u
            f'clients make local.epochs={flat["local.epochs"]} passes',
        ),
        (('federation.mu',), method.labels_alone(flat), 'the clients train on labeled images alone'),
        (('model.projection_dim',), flat['model.projection'] == 'none', "model.projection='none'"),
        (('model.batch_norm_variance',), _has_no_batch_norm(flat['model.name']), no_norm),
        (
            ('semifl.batch_norm_data',),
            _has_no_batch_norm(flat['model.name']) and flat['data.residency'] != 'host',  # which 'all' contradicts
            no_norm,
        ),
        (('fedmatch.helper_every', 'fedmatch.lambda_i'), flat.get('fedmatch.helpers') == 0, 'fedmatch.helpers=0'),
        (('augment.magnitude',), not flat['augment.operations'], 'augment.operations=0'),
        (('parallel.trials',), not flat['seeds'], 'it is about several seeds (seeds)'),
    ):
        if is_idle:
            yield from ((key, why) for key in keys)


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
    elif flat['data.image_folder'] and name in (own_folder.NAME, image100.NAME, cinic10.NAME):
        idle, why = ('data_dir',), 'the images are those in data.image_folder'
    yield from ((f'data.{key}', why) for key in idle)


def _idle_in_partition(config: ConfigDict) -> Iterator[tuple[str, str]]:
    if config.data.partition_file:
        for key in (*_OF_PARTITION, *_OF_LABELS, 'alpha', 'partition', 'mismatch'):
            yield f'federation.{key}', 'the split is that of data.partition_file'
        return
    used = partition_settings.settings(config)
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


def _group(flat: dict[str, Any], name: str) -> list[str]:
    return [key for key in flat if key.startswith(f'{name}.') and key != 'cost.enabled']


def _adapts_k_s(flat: dict[str, Any], method: algorithms.Method) -> bool:
    """Whether K_s may change in the course of a run."""
    by_rule = method.adapts_k_s if flat['k_s_rule'] == 'auto' else flat['k_s_rule'] != 'fixed'
    return by_rule and flat['pseudo_labels'] != 'none'


def _has_no_batch_norm(model: str) -> bool:
    """Whether a model for classification has no BatchNorm; False for a user's own, which may have it anywhere."""
    make = zoo.ARCHITECTURES.get(model)
    if make is None or make.__module__ != zoo.__name__:
        return False
    return not any(getattr(layer(name='probe'), 'norm', False) for layer in make(1, FLOAT32).layers)
