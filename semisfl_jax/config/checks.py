"""Validation of a configuration: names, types and ranges of single keys, and combinations of keys."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from semisfl_jax import algorithms, augment, core, costs, models
from semisfl_jax.algorithms.options import check_option
from semisfl_jax.algorithms.registry import option_fields
from semisfl_jax.config import compatibility, devices, failures, keys, kinds, presets
from semisfl_jax.config.resolve import flatten
from semisfl_jax.core import frequency, machine, sampling
from semisfl_jax.core.errors import UserError, shorten, use_one_of
from semisfl_jax.core.hparams import LR_SCHEDULES
from semisfl_jax.core.objectives import OBJECTIVES, TSA_SCHEDULES
from semisfl_jax.core.teacher import PSEUDO_LABELS
from semisfl_jax.data import partition_settings
from semisfl_jax.data.federation import RESIDENCIES
from semisfl_jax.data.partition import EVAL_SPLITS
from semisfl_jax.data.partition_settings import IGNORED_LABELED, LABELED_SPLITS, TASK_IMAGES
from semisfl_jax.data.partitioners import LABELED_PARTITIONS, PARTITIONS

_CHOICES = {
    'precision': tuple(machine.PRECISIONS),
    'algorithm': algorithms.METHODS,
    'data.labeled_split': LABELED_SPLITS,
    'data.task_images': TASK_IMAGES,
    'data.residency': RESIDENCIES,
    'data.eval_split': EVAL_SPLITS,
    'federation.partition': PARTITIONS,
    'federation.labeled_partition': LABELED_PARTITIONS,
    'federation.ignored_labeled': IGNORED_LABELED,
    'federation.client_map': core.CLIENT_MAPS,
    'model.name': models.EVERY_ARCHITECTURE,
    'model.projection': models.PROJECTIONS,
    'model.convolution': models.CONVOLUTIONS,
    'model.batch_norm_variance': models.BATCH_NORM_VARIANCES,
    'k_s_rule': ('auto', *frequency.RULES),
    'setting': presets.SETTINGS,
    'optimizer': ('sgd', 'adam'),
    'lr_schedule': LR_SCHEDULES,
    'local.objective': OBJECTIVES,
    'local.steps': ('auto', *sampling.STEPS),
    'local.weighting': ('auto', 'samples', 'uniform'),
    'local.optimizer_state': ('auto', 'fresh', 'kept'),
    'pseudo_labels': PSEUDO_LABELS,
    'uda.tsa': TSA_SCHEDULES,
    'supervised_references': ('teacher_keys', 'student_supcon'),
    'queue': ('two_level', 'single_ring', 'off'),
    'queue_empty_slots': ('auto', 'ignore', 'count'),
    'client_teacher_bn': ('eval', 'train'),
    'server_teacher_bn': ('eval', 'train_first_round'),
    'sampling': sampling.ORDERS,
    'augment.supervised': ('strong', 'weak'),
    'parallel.trials': core.TRIAL_MAPS,
    'cost.bill_model_size': ('actual', 'paper'),
    'cost.bandwidth_unit': tuple(costs.BANDWIDTH_UNITS),
}

_MOST = 2**31  # rows, clients, iterations and rounds are counted in int32 on the device

# key -> (test, requirement as worded in the error message)
_POSITIVE = (lambda x: x >= 1, 'must be at least 1')
_NOT_NEGATIVE = (lambda x: x >= 0, 'must be 0 or more')
_ABOVE_ZERO = (lambda x: x > 0, 'must be above 0')
_SHARE = (lambda x: 0 <= x < 1, 'must be in [0, 1)')
_SEED = (lambda x: 0 <= x < 2**32, 'must be in 0 .. 2**32 - 1')
_RANGES = {
    'seed': _SEED,
    **dict.fromkeys(('rounds', 'eval_every', 'eval_batch_size', 'checkpoint_every', 'checkpoints_kept'), _POSITIVE),
    'data.num_labeled': _POSITIVE,
    'data.partition_seed': (lambda x: -1 <= x < 2**32, 'must be a seed, in 0 .. 2**32 - 1, or -1 for that of the run'),
    'data.client_labels': (lambda x: x >= -1, 'must be a number of labels, or -1 for all'),
    'uda.temperature': _ABOVE_ZERO,
    **dict.fromkeys(
        (
            'federation.mu',
            'federation.client_chunk',
            'parallel.devices',
            'parallel.process_id',
            'diagnostics_every',
            'k_s',
            'local.epochs',
            'local.prox',
            'local.input_noise',
            'local.ramp_rounds',
        ),
        _NOT_NEGATIVE,
    ),
    'data.fake_size': (lambda x: 0 <= x <= 10**7, 'must be at most ten million, or 0 for as many as the true set has'),
    'data.image_size': (lambda x: 0 <= x <= 4096, 'must be a side of at most 4096 pixels, or 0 to keep the images'),
    'data.pad_to': (lambda x: 0 <= x <= 4096, 'must be a side of at most 4096 pixels, or 0 for no padding'),
    'parallel.num_processes': _POSITIVE,
    'federation.num_clients': _POSITIVE,
    'federation.num_active': _POSITIVE,
    'federation.alpha': _ABOVE_ZERO,
    'model.projection_dim': _POSITIVE,
    **dict.fromkeys(('k_u', 'queue_size', 'queue_stride'), _POSITIVE),
    **dict.fromkeys(('batch_size', 'server_batch_size'), (lambda x: 1 <= x <= 10**6, 'must be from 1 to a million')),
    'pre_rounds': _NOT_NEGATIVE,
    'lr': _ABOVE_ZERO,
    'lr_min': _NOT_NEGATIVE,
    'lr_rounds': _NOT_NEGATIVE,
    'momentum': _SHARE,
    'weight_decay': _NOT_NEGATIVE,
    'threshold': (lambda x: 0 <= x <= 1, 'must be in [0, 1]'),
    'temperature': _ABOVE_ZERO,
    'local.teacher_decay': _SHARE,
    **dict.fromkeys(('consistency_weight', 'clustering_weight', 'contrastive_weight'), _NOT_NEGATIVE),
    'ema_decay': _SHARE,
    'frequency.alpha': (lambda x: x >= 1, 'must be at least 1: K_s is divided by it'),
    'frequency.beta': _NOT_NEGATIVE,
    **dict.fromkeys(('frequency.period', 'frequency.horizon', 'frequency.check_every'), _POSITIVE),
}


def check(config: ConfigDict) -> None:
    """Checks everything that can be checked without data or a model.

    Raises:
      UserError: for the first key or value that is unknown, of the wrong type, out of range, or in conflict with
        another one.
    """
    if isinstance(config, dict):
        raise UserError('a dictionary is not a configuration; write ml_collections.ConfigDict(DICTIONARY)')
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"{config!r} is not a configuration; write get_config('digits') for one that comes with the package"
        )
    flat = flatten(config)
    keys.check(flat, optional=option_fields())
    kinds.check(flat)
    _check_options(flat)
    for key, names in _CHOICES.items():
        if flat[key] not in names:
            raise UserError(f"config.{key}='{shorten(flat[key])}' is unknown; {use_one_of(flat[key], names)}")
    for key, value in flat.items():
        if type(value) is int and not key.endswith('seed') and not -_MOST <= value < _MOST:
            raise UserError(f'config.{key}={shorten(value)} does not fit in 32 bits; use less than 2**31 = {_MOST:,}')
    for key, (test, demand) in _RANGES.items():
        if not test(flat[key]):
            raise UserError(f'config.{key}={shorten(flat[key])} {demand}')
    for key, field in option_fields().items():
        if key in flat:
            check_option(key, field, flat[key])
    _check_seeds(flat['seed'], flat['seeds'])
    augment.check(augment.AugmentOptions(**{name: config.augment[name] for name in augment.AugmentOptions._fields}))
    _check_pairs(flat)
    partition_settings.check(config)
    costs.check_network(flat)
    costs.check_model(flat)
    failures.check(flat)


def _check_options(flat: dict[str, Any]) -> None:
    """Checks that the options of the method are present."""
    group = algorithms.get(flat['algorithm']).option_group
    for key in option_fields():
        if key.partition('.')[0] == group and key not in flat:
            raise UserError(
                f'config.{key} is missing: the configuration was made before the method was registered, or lost it; '
                'make it after register(METHOD)'
            )


def _check_seeds(seed: int, seeds: list) -> None:
    test, demand = _SEED
    for value in seeds:
        if type(value) is not int:
            raise UserError(f'config.seeds holds {value!r}, which is not an integer; write --config.seeds=0,1,2')
        if not test(value):
            raise UserError(f'config.seeds holds {value}: a seed {demand}')
        if seeds.count(value) > 1:
            raise UserError(f'config.seeds holds {value} more than once; give each seed once')
    if seeds and seed:
        raise UserError(
            f'config.seed={seed} and config.seeds={tuple(seeds)} contradict each other; give one of the two'
        )


def _check_pairs(flat: dict[str, Any]) -> None:
    active, clients = flat['federation.num_active'], flat['federation.num_clients']
    if active > clients:
        raise UserError(
            f'config.federation.num_active={active} is more than federation.num_clients={clients}; '
            'a round cannot have more active clients than there are'
        )
    devices.check(flat)
    side, padded = flat['data.image_size'], flat['data.pad_to']
    if 0 < padded < side:
        raise UserError(
            f'config.data.pad_to={padded} is below data.image_size={side}; images are resized first, then padded, so '
            f'use {side} or more, or 0 for no padding'
        )
    if flat['lr_min'] > flat['lr']:
        raise UserError(
            f'config.lr_min={flat["lr_min"]} is above lr={flat["lr"]}; the schedule falls from lr to lr_min'
        )
    compatibility.check(flat)
    period, horizon = flat['frequency.period'], flat['frequency.horizon']
    if horizon % period or horizon < 2 * period:
        raise UserError(
            f'config.frequency.horizon={horizon} must be a multiple of frequency.period={period}, and at least twice it'
        )
