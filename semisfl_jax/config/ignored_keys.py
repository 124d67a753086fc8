"""Warns of keys that the user set and that the method or another key makes idle.

They are not errors, because a study or a file may hold keys of all methods that it is used with. The table of keys
declares most of them (`base.keys.key`: `part`, `objectives`, `idle`); this module adds those that follow from more than
one key.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax.algorithms.registry import is_ours, option_fields
from semisfl_jax.base.keys import Field
from semisfl_jax.config import checks, keys, load
from semisfl_jax.config.resolve import flatten, k_s_rule
from semisfl_jax.data import partition
from semisfl_jax.models import zoo
from semisfl_jax.models.layers import FLOAT32

_OF_PARTITION = ('min_images', 'max_images', 'min_labeled', 'classes_per_client', 'labeled_alpha')
_OF_LABELS = ('labeled_partition', 'ignored_labeled')
_STRONG = [key for key in keys.fields() if key.startswith('augment.') and keys.fields()[key].metadata['objectives']]


def changed(config: ConfigDict) -> list[str]:
    """Returns the dotted keys that a program changed in a configuration read by `load.get_config`.

    Other configurations do not record their first values, so the list is empty for them.
    """
    began, flat = getattr(config, load.BEGAN, {}), keys.flat(config)
    of_papers = flat.get('official_keys', ())
    return [key for key, value in began.items() if flat.get(key) != value and key not in of_papers]


def warnings(config: ConfigDict, given: Iterable[str]) -> Iterator[str]:
    """Yields the warnings before a run: keys without effect, one line per reason, and clients that never train.

    Args:
      config: a checked configuration.
      given: dotted keys that the user set.
    """
    flat, idle = flatten(config), find(config)
    if algorithms.get(config.algorithm).clients and config.pre_rounds >= config.rounds:
        yield f'config.pre_rounds={config.pre_rounds} leaves the clients none of rounds={config.rounds}; use fewer'
    reasons: dict[str, list[str]] = {}
    for key in given:
        if key in idle:
            reasons.setdefault(idle[key], []).append(f'config.{key}={flat[key]}')
    for why, named in reasons.items():
        yield f'{", ".join(named)} {"has" if len(named) == 1 else "have"} no effect: {why}'


def find(config: ConfigDict) -> dict[str, str]:
    """Returns the idle keys of a checked configuration, and why they are idle."""
    flat = flatten(config)
    method = algorithms.get(flat['algorithm'])
    by_table = ((key, _by_table(key, field, flat, method)) for key, field in keys.fields().items() if key in flat)
    idle = {
        **{key: why for key, why in by_table if why},
        **dict(_by_partition(config)),
        **dict(_by_several(flat, method)),
    }
    if flat['diagnostics_every']:  # diagnostics always apply the threshold
        idle.pop('threshold', None)
    return idle


def unread_keys(config: ConfigDict) -> set[str]:
    """Returns the keys that nothing reads under a checked configuration: those of other methods, and idle ones."""
    return checks.unused(algorithms.get(config.algorithm)).keys() | find(config).keys()


def _by_table(key: str, field: Field, flat: dict[str, Any], method: algorithms.Method) -> str:
    """Returns why the table of keys makes a key idle, '' if it does not.

    A user's method may read anything that it accepts, whatever the parts and objectives of a key.
    """
    rule = field.metadata
    if key in option_fields() and key.partition('.')[0] != method.option_group:
        return f'it is not an option of {method.name}'
    for other, values in rule['idle'].items():
        if flat.get(other) in (values if isinstance(values, tuple) else (values,)):
            return f'{other}={flat[other]!r}'
    if not is_ours(method):
        return ''
    has = {'': True, 'clients': method.clients, 'memory queue': method.clusters, 'projection head': method.clusters}
    if not has[rule['part']]:
        return f'{method.name} has no {rule["part"]}'
    if not rule['objectives'] or (key in _STRONG and flat['augment.supervised'] == 'strong'):
        return ''
    chosen = 'objective' in method.uses
    by = f"local.objective='{flat['local.objective']}'" if chosen else method.name
    pseudo_labels = method.clients and not method.labels_alone(flat) and not method.counts_all
    if flat['local.objective'] in rule['objectives'] if chosen else pseudo_labels:
        return ''
    return f"{by} has no strong views beside augment.supervised='weak'" if key in _STRONG else f'{by} does not read it'


def _by_several(flat: dict[str, Any], method: algorithms.Method) -> Iterator[tuple[str, str]]:
    """Yields the keys that a combination of keys makes idle, and why."""
    pseudo_labels, k_s, adapts = flat['pseudo_labels'], flat['k_s'], k_s_rule(flat, method) != 'fixed'
    no_norm = f"model.name='{flat['model.name']}' has no BatchNorm"
    same_k_s = f"k_s_rule='{flat['k_s_rule']}' of {method.name} reads no key of frequency"
    if method.labels_alone(flat) or not method.clients:
        same_k_s = f'{method.name} has no pseudo-labels'
    if pseudo_labels == 'none':
        same_k_s = "pseudo_labels='none' keeps K_s constant"
    if not k_s:
        same_k_s = 'k_s=0'
    late = flat['failures.deadline_seconds']  # the other costs decide which clients are late
    cost = ['cost.server_teraflops'] if late else [key for key in _group(flat, 'cost') if key != 'cost.enabled']
    counts = pseudo_labels != 'none' or (method.cuts and flat['data.client_labels'])  # both losses include labeled rows
    no_clients, counts_of_tasks = f'{method.name} has no clients', flat['data.images_of_tasks']
    for idle, is_idle, why in (
        ([*_group(flat, 'federation'), 'data.num_unlabeled'], not method.clients, no_clients),
        (['data.num_unlabeled'], bool(counts_of_tasks), f'data.images_of_tasks={tuple(counts_of_tasks)}'),
        (['consistency_weight', 'clustering_weight'], not counts, f"pseudo_labels='{pseudo_labels}'"),
        (['k_s_rule'], flat['k_s_rule'] not in ('auto', 'fixed') and not adapts, same_k_s),
        (_group(flat, 'frequency'), not adapts, same_k_s),
        (['frequency.beta'], k_s_rule(flat, method) == 'coverage', 'K_min is by coverage'),
        (cost, not flat['cost.enabled'], 'cost.enabled=False'),
        (['k_u'], flat['local.epochs'] and not adapts, f'local.epochs={flat["local.epochs"]}'),
        (['local.optimizer_state'], flat['optimizer'] == 'sgd' and flat['momentum'] == 0, 'momentum=0'),
        (['federation.mu'], method.labels_alone(flat), 'the clients train on labeled images alone'),
        (['client_teacher_bn'], _lacks(flat['model.name'], 'norm', 'dropout'), f'{no_norm} and no dropout'),
        (['model.batch_norm_variance'], _lacks(flat['model.name'], 'norm'), no_norm),
        (
            ['semifl.batch_norm_data'],
            _lacks(flat['model.name'], 'norm') and flat['data.residency'] != 'host',  # 'host' with 'all' is an error
            no_norm,
        ),
        (
            ['augment.operations'],
            flat['augment.randaugment'] == 'fedmatch' and flat['augment.operations'] != 0,
            "augment.randaugment='fedmatch' has its own number",
        ),
        *_of_feddure(flat, method),
        (['parallel.trials'], not flat['seeds'], 'it is about several seeds (seeds)'),
    ):
        if is_idle:
            yield from ((key, why) for key in idle)


def _of_feddure(flat: dict[str, Any], method: algorithms.Method) -> Iterator[tuple[list[str], bool, str]]:
    """Yields the rows of `_by_several` on FedDure's two regulators, which learn from clients' labels."""
    if method.name == 'feddure':
        fine, coarse = flat['feddure.fine'], flat['feddure.coarse']
        learn = ['feddure.coarse', 'feddure.coarse_rate', *(['feddure.fine_rate'] if fine else [])]
        unlabeled = not (flat['data.client_labels'] and flat['federation.mu'])
        yield learn, unlabeled, 'without labels at the clients neither regulator learns'
        yield ['feddure.coarse_rate'], not (fine or coarse), 'both regulators are left out'


def _by_partition(config: ConfigDict) -> Iterator[tuple[str, str]]:
    if config.data.partition_file:
        for key in (*_OF_PARTITION, *_OF_LABELS, 'alpha', 'partition', 'mismatch'):
            yield f'federation.{key}', 'the split is that of data.partition_file'
        for key in ('num_labeled', 'labeled_split', 'num_unlabeled', 'partition_seed'):
            yield f'data.{key}', 'the split is that of data.partition_file'
        return
    used, fed = partition.settings(config), config.federation
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
    return [key for key in flat if key.startswith(f'{name}.')]


def _lacks(model: str, *parts: str) -> bool:
    """Returns whether no layer of a classification model has any of `parts`: 'norm' (BatchNorm) or 'dropout'.

    False for a user's model, which may have them anywhere.
    """
    make = zoo.ARCHITECTURES.get(model)
    if make is None or getattr(make, 'func', make).__module__ != zoo.__name__:
        return False
    return not any(getattr(layer(name='probe'), part, 0) for layer in make(1, FLOAT32).layers for part in parts)
