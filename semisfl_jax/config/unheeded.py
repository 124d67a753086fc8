"""Keys that another key makes idle: a command that sets one of them anyway is told so.

They are not errors, because a study or a configuration file may change the one and leave the other as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax.config.resolve import flatten
from semisfl_jax.data import partition_settings
from semisfl_jax.errors import warn

_OF_PARTITION = ('min_images', 'max_images', 'min_labeled', 'classes_per_client', 'labeled_alpha')
_OF_LABELS = ('labeled_partition', 'ignored_labeled')


def tell(config: ConfigDict, given: Iterable[str]) -> None:
    """Warns of every dotted key of `given` that has no effect in a configuration.

    What 'auto' stands for depends on the method, which may be changed alone, so it makes no key idle.
    """
    flat, idle = flatten(config), dict(_idle(config))
    for key in given:
        if key in idle:
            warn(f'config.{key}={flat[key]} has no effect: {idle[key]}')


def _idle(config: ConfigDict) -> Iterator[tuple[str, str]]:
    """The idle keys, and why they are."""
    yield from _idle_in_partition(config)
    flat = flatten(config)
    for keys, is_idle, why in (
        (('queue_size', 'queue_stride', 'queue_empty_slots'), flat['queue'] == 'off', "queue='off'"),
        (('threshold',), flat['pseudo_labels'] != 'method', f"pseudo_labels='{flat['pseudo_labels']}' needs none"),
        (_group(flat, 'frequency'), flat['k_s_rule'] == 'fixed', "k_s_rule='fixed'"),
        (_group(flat, 'cost'), not flat['cost.enabled'], 'cost.enabled=False'),
        (('k_u',), bool(flat['local.epochs']), f'clients make local.epochs={flat["local.epochs"]} passes'),
        (('augment.magnitude',), not flat['augment.operations'], 'augment.operations=0'),
        (('parallel.trials',), not flat['seeds'], 'it is about several seeds (seeds)'),
    ):
        if is_idle:
            yield from ((key, why) for key in keys)


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
