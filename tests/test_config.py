"""Configurations: what is accepted, what is refused, and what makes two of them one experiment."""

import functools
import importlib
import json
import math
import re
import socket

import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from configs import default
from semisfl_jax import algorithms, models
from semisfl_jax import config as config_lib
from semisfl_jax import hparams as hparams_lib
from semisfl_jax.algorithms import method as method_lib
from semisfl_jax.config import checks, compatibility
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import HParams
from semisfl_jax.parallel import hosts
from tests import needs, rows

NAMES = ('digits', 'mnist', 'fashion_mnist', 'cifar10', 'svhn', 'stl10', 'cinic10', 'image100')
# Data set, model, labels: Section V of the paper. B, B_s, supervised-only rounds: the authors' code.
PAPER = {
    'cifar10': ('cifar10', 'alexnet', 4000, 64, 64, 0),
    'svhn': ('svhn_cropped', 'cnn', 1000, 64, 64, 0),
    'stl10': ('stl10', 'vgg13', 5000, 32, 64, 0),
    'image100': ('image100', 'vgg16', 5000, 64, 128, 20),
}


def get(name, settings='paper'):
    return importlib.import_module(f'configs.{name}').get_config(settings)


def changed(**changes):
    """The default configuration with changes; dots in keys are written as two underscores."""
    config = default.get_config()
    config.update_from_flattened_dict({key.replace('__', '.'): value for key, value in changes.items()})
    return config


@pytest.mark.parametrize('settings', ['paper', 'code'])
@pytest.mark.parametrize('name', NAMES)
def test_every_configuration_is_valid_and_has_the_same_keys(name, settings):
    config = get(name, settings)
    config_lib.check(config)
    assert config_lib.flatten(config).keys() == config_lib.flatten(default.get_config()).keys()
    assert config.queue == ('two_level' if settings == 'paper' else 'single_ring')
    assert config.k_s_rule == ('auto' if settings == 'paper' else 'code')
    assert config.client_teacher_bn == ('eval' if settings == 'paper' else 'train')
    assert config.server_teacher_bn == ('eval' if settings == 'paper' else 'train_first_round')
    assert config.model.batch_norm_variance == ('biased' if settings == 'paper' else 'unbiased')
    assert config.sampling == ('epochs' if settings == 'paper' else 'replicated')


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
@pytest.mark.parametrize('name', NAMES)
def test_every_configuration_takes_every_method(name, algorithm):
    """With no more keys than tests/needs.py has. The authors' code is SemiSFL's: options of it that a method has no use
    for are refused there by name."""
    config = get(name)
    config.update_from_flattened_dict(needs.changes(algorithm))
    config_lib.check(config_lib.resolve(config))
    config = get(name, 'code')
    config.update_from_flattened_dict(needs.changes(algorithm))
    foreign = compatibility.unused(algorithms.get(algorithm)).keys() & {'queue', 'client_teacher_bn'}
    if not foreign:
        config_lib.check(config_lib.resolve(config))
        return
    with pytest.raises(UserError, match=f'is not an option of {algorithm}') as error:
        config_lib.check(config_lib.resolve(config))
    assert re.search('|'.join(foreign), str(error.value))


@pytest.mark.parametrize('name', NAMES)
def test_unknown_settings_are_refused(name):
    with pytest.raises(UserError, match="unknown settings 'papr'"):
        get(name, 'papr')


@pytest.mark.parametrize('name', PAPER)
def test_the_papers_experiments(name):
    config = get(name)
    actual = (
        config.data.name,
        config.model.name,
        config.data.num_labeled,
        config.batch_size,
        config.server_batch_size,
        config.pre_rounds,
    )
    assert actual == PAPER[name]
    assert (config.rounds, config.k_s, config.k_u) == (1000, 100, 50)
    assert (config.federation.num_clients, config.federation.num_active) == (30, 10)
    assert (config.lr, config.lr_min, config.momentum, config.weight_decay) == (0.02, 0.005, 0.9, 5e-4)
    assert config.augment.supervised == ('weak' if name == 'svhn' else 'strong')


@pytest.mark.parametrize('name', ['digits', 'mnist', 'fashion_mnist'])
def test_short_configurations_check_k_s_within_the_run(name):
    config = get(name)
    assert config.frequency.horizon <= config.rounds / 2
    assert config.frequency.check_every <= config.rounds / 2
    assert config.lr_rounds == config.rounds
    assert config.augment.flip is (name == 'fashion_mnist')


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('algorithm', 'semisf'),
        ('seed', -1),
        ('rounds', 0),
        ('eval_every', 0),
        ('checkpoints_kept', 0),
        ('data.num_labeled', 0),
        ('data.labeled_split', 'equal'),
        ('data.client_labels', 4000),
        ('data.residency', 'disk'),
        ('federation.num_clients', 0),
        ('federation.num_active', 31),
        ('federation.partition', 'iid'),
        ('parallel.devices', -1),
        ('parallel.devices', 11),
        ('parallel.num_processes', 0),
        ('parallel.num_processes', 2),
        ('parallel.process_id', -1),
        ('parallel.process_id', 1),
        ('parallel.coordinator', 'localhost'),
        ('parallel.coordinator', 'localhost:0'),
        ('parallel.coordinator', 'localhost:65536'),
        ('federation.alpha', 0.0),
        ('federation.alpha', -0.5),
        ('federation.alpha', math.nan),
        ('model.name', 'resnet'),
        ('model.projection', 'MLP'),
        ('model.convolution', 'fft'),
        ('k_s', 0),
        ('k_s', -1),
        ('setting', 'paper'),
        ('optimizer', 'rmsprop'),
        ('data.client_labels', -2),
        ('data.partition_seed', -2),
        ('federation.labeled_partition', 'equal'),
        ('federation.ignored_labeled', 'kept'),
        ('local.objective', 'mixmatch'),
        ('local.epochs', -1),
        ('local.weighting', 'equal'),
        ('local.optimizer_state', 'lost'),
        ('local.prox', -0.1),
        ('uda.temperature', 0.0),
        ('uda.tsa', 'square'),
        ('fedswitch.mode', 'both'),
        ('fedswitch.beta_iid', -1.0),
        ('fedmatch.helpers', -1),
        ('fedmatch.helper_every', 0),
        ('fedmatch.lambda_l2', -0.5),
        ('fedmatch.l1_threshold', math.nan),
        ('fedmatch.psi_start', -0.2),
        ('fedmatch.delta_threshold', -1e-5),
        ('semifl.order', 'random'),
        ('semifl.mixup_alpha', 0.0),
        ('semifl.clip_norm', -1.0),
        ('semifl.max_passes', -1),
        ('semifl.global_momentum', 1.0),
        ('semifl.batch_norm_data', 'clients'),
        ('semifl.pass_batch_size', 0),
        ('k_u', -3),
        ('k_s_rule', 'codex'),
        ('batch_size', 0),
        ('server_batch_size', 0),
        ('lr', 0.0),
        ('lr', math.inf),
        ('lr_min', 0.03),
        ('lr_schedule', 'step'),
        ('momentum', 1.0),
        ('weight_decay', -1e-4),
        ('threshold', -0.1),
        ('threshold', 1.5),
        ('temperature', 0.0),
        ('clustering_weight', -1.0),
        ('supervised_references', 'keys'),
        ('queue', 'three_level'),
        ('queue_size', 0),
        ('queue_empty_slots', 'skip'),
        ('ema_decay', 1.0),
        ('client_teacher_bn', 'frozen'),
        ('frequency.alpha', 0.5),
        ('frequency.horizon', 105),
        ('frequency.horizon', 10),
        ('augment.crop', 1.0),
        ('augment.scale_min', 0.2),
        ('augment.scale_min', 1.5),
        ('augment.scale_max', 4.5),
        ('augment.scale_max', 0.9),
        ('augment.rotate', -1.0),
        ('augment.rotate', math.nan),
        ('augment.magnitude', 1),
        ('augment.cutout', -1),
        ('augment.supervised', 'both'),
        ('augment.randaugment', 'tf'),
        ('parallel.trials', 'pmap'),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_value(key, value):
    with pytest.raises(UserError) as error:
        config_lib.check(changed(**{key: value}))
    assert f'{key}=' in str(error.value)
    assert str(value) in str(error.value)
    assert '\n' not in str(error.value)


def of_json(**changes):
    """The default configuration as if read from a file, with changes as in `changed` but of any type."""
    content = json.loads(default.get_config().to_json())
    for key, value in changes.items():
        *groups, name = key.split('__')
        functools.reduce(dict.get, groups, content)[name] = value
    return ConfigDict(content)


def test_a_configuration_from_json_is_valid():
    config_lib.check(of_json())
    config_lib.check(of_json(seeds=[1, 2], lr=1, model__split_index=2, cost__client_out=[1, 2]))
    resolved = config_lib.resolve(default.get_config())
    config_lib.check(ConfigDict(json.loads(resolved.to_json())))


def test_a_frozen_configuration_is_the_same_experiment():
    config = default.get_config()
    config_lib.check(FrozenConfigDict(config))
    resolved = config_lib.resolve(FrozenConfigDict(config))
    assert resolved == config_lib.resolve(config)
    assert not isinstance(resolved.data, FrozenConfigDict)


@pytest.mark.parametrize(
    ('key', 'value', 'message'),
    [
        ('rounds', '3', "config.rounds='3' is a str; use an int"),
        ('rounds', 2.0, 'config.rounds=2.0 is a float; use an int'),
        ('augment__cutout', 2.5, 'config.augment.cutout=2.5 is a float; use an int'),
        ('seed', None, 'config.seed=None has no value; use an int'),
        ('seed', True, 'config.seed=True is a bool; use an int'),
        ('lr', True, 'config.lr=True is a bool; use a number'),
        ('lr', 'a', "config.lr='a' is a str; use a number"),
        ('lr', None, 'config.lr=None has no value; use a number'),
        ('lr', math.inf, 'config.lr=inf must be a finite number'),
        ('weight_decay', math.inf, 'config.weight_decay=inf must be a finite number'),
        ('augment__flip', 'no', "config.augment.flip='no' is a str; use True or False"),
        ('deterministic', 1, 'config.deterministic=1 is an int; use True or False'),
        ('algorithm', [1], 'config.algorithm=[1] is a list; use a str'),
        ('precision', 32, 'config.precision=32 is an int; use a str'),
        ('model__split_index', '2', "config.model.split_index='2' is a str; use an int or None"),
        ('model__split_index', True, 'config.model.split_index=True is a bool; use an int or None'),
        ('seeds', 3, 'config.seeds=3 is an int; use a tuple or a list'),
        ('machine_keys', None, 'config.machine_keys=None has no value; use a tuple or a list'),
        ('cost__devices', 'jetson_tx2', "config.cost.devices='jetson_tx2' is a str; use a tuple or a list"),
        ('cost__devices', [[1]], 'config.cost.devices holds [1], which is no str; use names'),
        ('data__tasks', [3], 'config.data.tasks holds 3, which is no str; use names'),
        ('fedmatch__helpers', '2', "config.fedmatch.helpers='2' is a str; use an int"),
        ('federation', 3, 'config.federation is a group of keys; set one of them, such as config.federation.alpha'),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(key, value, message):
    with pytest.raises(UserError, match=f'^{re.escape(message)}$'):
        config_lib.check(of_json(**{key: value}))


@pytest.mark.parametrize('key', config_lib.flatten(default.get_config()))
def test_every_key_has_a_type(key):
    """None is a value of `model.split_index` alone, and no key takes an object of a type that nobody has."""
    config = {key.replace('.', '__'): None}
    if key == 'model.split_index':
        config_lib.check(of_json(**config))
        return
    for value in (None, b'bytes'):
        with pytest.raises(UserError, match=rf'^config\.{re.escape(key)}={value!r} (is a bytes|has no value); use '):
            config_lib.check(of_json(**{key.replace('.', '__'): value}))


@pytest.mark.parametrize('registry', ['ARCHITECTURES', 'DENSE_ARCHITECTURES'])
def test_a_model_that_a_user_registers_is_a_choice(registry, monkeypatch):
    config = default.get_config()
    config.model.name = 'qq'
    with pytest.raises(UserError, match=r"config.model.name='qq' is unknown; use one of small_cnn, .*resnet101$"):
        config_lib.check(config)
    monkeypatch.setitem(getattr(models, registry), 'qq', None)
    assert 'qq' in checks._CHOICES['model.name']
    if registry == 'ARCHITECTURES':
        config_lib.check(config)


def test_a_client_batch_must_be_divisible_into_its_parts():
    config_lib.check(changed(data__client_labels=100, federation__mu=7, batch_size=64))
    config_lib.check(changed(data__client_labels=0, federation__mu=7, batch_size=60))
    with pytest.raises(UserError, match='multiple of 8'):
        config_lib.check(changed(data__client_labels=100, federation__mu=7, batch_size=60))


SUPERVISED = {'algorithm': 'fedavg', 'local__objective': 'supervised'}
UDA = {'algorithm': 'fedavg', 'local__objective': 'uda'}


@pytest.mark.parametrize(
    'changes',
    [
        {'algorithm': 'fedavg'},
        {'algorithm': 'fedprox', 'local__prox': 0.5, 'local__epochs': 2, 'data__client_labels': 100},
        {'algorithm': 'fedprox', 'data__client_labels': 4000, 'k_s': 0},
        {'algorithm': 'fedswitch', 'fedswitch__mode': 'teacher', 'ema_decay': 0.9, 'data__client_labels': 100},
        SUPERVISED | {'data__client_labels': 100, 'batch_size': 10},
        SUPERVISED | {'data__client_labels': -1},
        SUPERVISED | {'data__client_labels': -1, 'k_s': 0},
        UDA | {'uda__temperature': 0.4},
        UDA | {'uda__tsa': 'exp', 'data__client_labels': 100},
        {'algorithm': 'fedmatch', 'data__client_labels': 4000, 'k_s': 0, 'local__optimizer_state': 'kept'},
        {'algorithm': 'fedmatch', 'fedmatch__helpers_persist': True, 'fedmatch__helpers': 29},
        {'algorithm': 'semifl', 'semifl__order': 'server_first', 'local__epochs': 5, 'semifl__clip_norm': 0.0},
        {'algorithm': 'semifl', 'data__client_labels': 100, 'federation__mu': 0},
        {'algorithm': 'semifl', 'data__residency': 'host', 'semifl__batch_norm_data': 'server'},
        {'optimizer': 'adam', 'nesterov': False},
        {'threshold': 0.0},
    ],
)
def test_combinations_that_make_sense(changes):
    config_lib.check(changed(**changes))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (SUPERVISED, 'no client has a label (data.client_labels=0)'),
        (SUPERVISED | {'data__client_labels': 9, 'federation__mu': 0}, 'federation.mu=0 ignores the labels'),
        ({'algorithm': 'fedavg', 'k_s': 0}, 'k_s=0 leaves no label to learn from'),
        ({'algorithm': 'fedavg', 'k_s': 0, 'data__client_labels': 9, 'federation__mu': 0}, 'leaves no label'),
        ({'algorithm': 'fedswitch', 'k_s': 0, 'data__client_labels': 9}, 'fedswitch learns from labels at the server'),
        ({'algorithm': 'fedavg', 'data__client_labels': 4000}, 'use fewer (or k_s=0'),
        ({'data__client_labels': -1}, 'those of semisfl also train on unlabeled images'),
        ({'algorithm': 'fedavg', 'data__client_labels': -1}, 'those of fedavg also train on unlabeled images'),
        ({'algorithm': 'fedavg', 'local__prox': 0.5}, 'local.prox=0.5 is not an option of fedavg'),
        ({'local__epochs': 1}, 'local.epochs=1 is not an option of semisfl'),
        (
            {'algorithm': 'fedavg', 'sampling': 'replicated', 'local__epochs': 2},
            "sampling='replicated' repeats a client's images to fill k_u iterations",
        ),
        ({'local__objective': 'uda'}, 'local.objective=uda is not an option of semisfl'),
        ({'algorithm': 'fedswitch', 'local__objective': 'uda'}, 'local.objective=uda is not an option of fedswitch'),
        ({'algorithm': 'supervised_only', 'fedswitch__mode': 'teacher'}, 'fedswitch.mode=teacher is not an option'),
        ({'algorithm': 'fedavg', 'client_teacher_ema': True}, 'client_teacher_ema=True is not an option of fedavg'),
        ({'algorithm': 'fedprox', 'model__split_index': 3}, 'model.split_index=3 is not an option of fedprox'),
        ({'algorithm': 'fedswitch', 'queue': 'off'}, 'queue=off is not an option of fedswitch'),
        ({'algorithm': 'fedavg', 'ema_decay': 0.9}, 'ema_decay=0.9 is not an option of fedavg'),
        ({'algorithm': 'fedavg', 'uda__temperature': 0.4}, "needs local.objective='uda', not 'fixmatch'"),
        (
            {'algorithm': 'fedswitch', 'fedswitch__mode': 'teacher', 'fedswitch__beta_iid': 0.3},
            "needs fedswitch.mode='switch', not 'teacher'",
        ),
        ({'algorithm': 'fedmatch', 'k_s': 0}, 'k_s=0 leaves no label to learn from'),
        ({'algorithm': 'fedmatch', 'data__client_labels': -1}, 'those of fedmatch also train on unlabeled images'),
        ({'algorithm': 'fedmatch', 'consistency_weight': 0.5}, 'consistency_weight=0.5 is not an option of fedmatch'),
        ({'algorithm': 'fedmatch', 'model__split_index': 3}, 'model.split_index=3 is not an option of fedmatch'),
        ({'algorithm': 'fedavg', 'fedmatch__helpers': 1}, 'fedmatch.helpers=1 is not an option of fedavg'),
        ({'fedmatch__lambda_a': 0.5}, 'fedmatch.lambda_a=0.5 is not an option of semisfl'),
        ({'algorithm': 'fedmatch', 'fedmatch__helpers': 30}, 'helpers=30 is more than the number of other clients'),
        (
            {'algorithm': 'fedmatch', 'fedmatch__helpers_persist': True, 'fedmatch__helper_every': 1},
            'keeps helpers for rounds without new ones, but there are none',
        ),
        (
            {'algorithm': 'semifl', 'local__epochs': 2, 'semifl__max_passes': 3},
            'semifl.max_passes=3 has no effect with local.epochs=2',
        ),
        ({'algorithm': 'fedavg', 'semifl__clip_norm': 2.0}, 'semifl.clip_norm=2.0 is not an option of fedavg'),
        ({'semifl__order': 'server_first'}, 'semifl.order=server_first is not an option of semisfl'),
        ({'algorithm': 'semifl', 'consistency_weight': 2.0}, 'consistency_weight=2.0 is not an option of semifl'),
        ({'algorithm': 'semifl', 'model__split_index': 3}, 'model.split_index=3 is not an option of semifl'),
        ({'algorithm': 'semifl', 'k_s': 0}, 'semifl learns from labels at the server'),
        ({'algorithm': 'semifl', 'data__client_labels': 100}, 'client_labels=100: clients of semifl have no labels'),
        ({'algorithm': 'semifl', 'data__residency': 'host'}, "batch_norm_data='all' needs the images of all clients"),
        (UDA | {'uda__tsa': 'log'}, "uda.tsa='log' anneals labels at the clients, but they have none"),
        ({'optimizer': 'adam'}, "nesterov=True belongs to optimizer='sgd'"),
        ({'setting': 'official'}, "config.setting='official': semisfl has no such setting"),
        ({'algorithm': 'fedswitch', 'setting': 'official'}, 'only the abstract of its paper was available'),
        ({'algorithm': 'fedavg', 'setting': 'official'}, 'has none of its values'),
    ],
)
def test_combinations_that_make_no_sense_end_in_one_line(changes, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        config_lib.check(changed(**changes))
    assert '\n' not in str(error.value)


def valid_other(key):
    """Another value of a key that is valid on its own."""
    value = config_lib.flatten(default.get_config())[key]
    options = method_lib.option_fields()
    choices = options[key].metadata['choices'] if key in options else checks._CHOICES.get(key)
    if choices:
        resolved = compatibility.shared_defaults().get(key)  # of 'auto'
        return next(choice for choice in choices if choice not in (value, resolved))
    if isinstance(value, bool):
        return not value
    if isinstance(value, str | list):
        return 'encoder.npz' if isinstance(value, str) else ('semseg',)
    return (value / 2 or 0.5) if isinstance(value, float) else (value or 0) + 1


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_every_option_that_a_method_has_no_use_for_ends_in_one_line(algorithm):
    base = needs.changes(algorithm)
    for key in compatibility.unused(algorithms.get(algorithm)):
        config = default.get_config()
        config.update_from_flattened_dict(base | {key: valid_other(key)})
        with pytest.raises(
            UserError, match=re.escape(f'config.{key}={config_lib.flatten(config)[key]} is no')
        ) as error:
            config_lib.check(config)
        assert algorithm in str(error.value)
        assert '\n' not in str(error.value)


def test_options_of_methods_belong_to_some_methods_alone():
    groups = hparams_lib.GROUPS.keys() | method_lib.option_groups().keys()
    options = {key for key in config_lib.flatten(default.get_config()) if key.split('.')[0] in groups}
    for key in options - {'semifl.batch_norm_data'}:  # which goes with where a configuration keeps its images
        refused = {name for name, method in algorithms.METHODS.items() if key in compatibility.unused(method)}
        assert set() < refused < set(algorithms.METHODS), f'{key} is refused by {refused or "no method"}'


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_no_label_to_learn_from_ends_in_one_line(algorithm):
    for labels in ({'data.client_labels': 0}, {'data.client_labels': 100, 'federation.mu': 0}):
        config = default.get_config()
        config.update_from_flattened_dict(needs.changes(algorithm) | {'k_s': 0} | labels)
        with pytest.raises(UserError, match='label') as error:
            config_lib.check(config)
        assert '\n' not in str(error.value)


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_k_s_adapts_in_semisfl_alone_unless_told(algorithm):
    config = changed(algorithm=algorithm)
    assert config_lib.resolve(config).k_s_rule == ('paper' if algorithm == 'semisfl' else 'fixed')
    assert config_lib.resolve(changed(algorithm=algorithm, k_s_rule='code')).k_s_rule == 'code'


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_optimizers_are_kept_across_rounds_in_semifl_alone_unless_told(algorithm):
    """Its authors' clients and server keep their momentum; in no other method is this known of its authors."""
    config = changed(**{key.replace('.', '__'): value for key, value in needs.changes(algorithm).items()})
    resolved = config_lib.resolve(config)
    assert resolved.local.optimizer_state == ('kept' if algorithm == 'semifl' else 'fresh')
    config_lib.check(resolved)
    config.local.optimizer_state = 'fresh'
    config_lib.check(config)
    assert config_lib.resolve(config).local.optimizer_state == 'fresh'


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_clients_count_by_their_images_where_the_methods_paper_says_so(algorithm):
    """n_k / n in FedAvg (Algorithm 1), FedProx (Section 5.1) and SplitFed (Algorithm 1); evenly elsewhere. Which method
    is which stands in its tests."""
    by_images = rows.rows()[algorithm].by_images
    config = changed(**{key.replace('.', '__'): value for key, value in needs.changes(algorithm).items()})
    assert config.local.weighting == 'auto'
    resolved = config_lib.resolve(config)
    assert resolved.local.weighting == ('samples' if by_images else 'uniform')
    config_lib.check(resolved)
    if algorithms.get(algorithm).separate_clients:
        for given in ('samples', 'uniform'):
            config.local.weighting = given
            config_lib.check(config)
            assert config_lib.resolve(config).local.weighting == given


def test_the_hyper_parameters_are_those_of_the_configuration():
    """Defaults that compatibility.check compares with stand in HParams; a configuration must begin with the same."""
    resolved = config_lib.resolve(changed(lr_rounds=1000))
    assert config_lib.hparams(resolved) == HParams()
    supervised = changed(**SUPERVISED, data__client_labels=-1, k_s=0, batch_size=10)
    hparams = config_lib.hparams(config_lib.resolve(supervised))
    assert (hparams.labeled_rows, hparams.server_trains, hparams.local.objective) == (10, False, 'supervised')
    hparams = config_lib.hparams(config_lib.resolve(changed(algorithm='fedavg', data__client_labels=100)))
    assert (hparams.labeled_rows, hparams.server_trains, hparams.batches) == (8, True, (50, 64, 8, 0, 'unlabeled'))


def test_resolving_fills_in_the_length_of_the_schedule():
    config = changed(lr_rounds=0, rounds=70)
    resolved = config_lib.resolve(config)
    assert resolved.lr_rounds == 70
    assert config.lr_rounds == 0
    assert resolved.is_locked
    assert config_lib.resolve(changed(lr_rounds=30, rounds=70)).lr_rounds == 30


def other(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    return {str: 'other', int: 12345, float: 0.12345, type(None): 2, list: (1, 2)}[type(value)]


@pytest.mark.parametrize('key', config_lib.flatten(default.get_config()))
def test_a_key_changes_the_identity_if_it_changes_the_numbers(key):
    config = default.get_config()
    twin = changed(**{key: other(config_lib.flatten(config)[key])})
    inert = key in (
        'rounds',
        'checkpoint_every',
        'checkpoints_kept',
        'diagnostics_every',
        'compilation_cache',
        'official_keys',
        'machine_keys',
        'data.data_dir',
        'data.cache_dir',
        'data.residency',
        'parallel.coordinator',
        'parallel.num_processes',
        'parallel.process_id',
    )
    assert (config_lib.identity_hash(config) == config_lib.identity_hash(twin)) == inert
    differences = config_lib.differences(twin, config.to_dict())
    assert [line.split(':')[0] for line in differences] == ([] if inert else [key])


def test_differences_show_both_values_and_missing_keys():
    old = default.get_config().to_dict()
    del old['k_u']
    assert config_lib.differences(changed(lr=0.5), old) == ['k_u: (absent) -> 50', 'lr: 0.02 -> 0.5']


def test_the_default_folder_depends_on_the_resolved_configuration():
    plain = config_lib.default_workdir(changed(rounds=70, lr_rounds=70), 'digits')
    assert plain.startswith('runs/digits-')
    assert len(plain) == len('runs/digits-') + 8
    assert plain == config_lib.default_workdir(changed(rounds=70, lr_rounds=0), 'digits')
    assert plain == config_lib.default_workdir(changed(rounds=99, lr_rounds=70), 'digits')
    assert plain != config_lib.default_workdir(changed(rounds=99, lr_rounds=0), 'digits')


def test_flatten():
    nested = ConfigDict({'a': 1, 'b': {'c': 'x', 'd': {'e': None}}})
    assert config_lib.flatten(nested) == {'a': 1, 'b.c': 'x', 'b.d.e': None}


def test_a_method_without_clients_has_nothing_to_spread():
    assert {name for name, method in algorithms.METHODS.items() if not method.clients} == {'supervised_only'}
    with pytest.raises(UserError, match='supervised_only has no clients to distribute'):
        config_lib.check(changed(algorithm='supervised_only', parallel__devices=2))


def test_devices_share_trials_equally():
    config_lib.check(changed(seeds=(0, 1, 2, 3, 4, 5), parallel__devices=3))
    with pytest.raises(UserError, match=r'devices=4 does not divide the 6 trials of config\.seeds.*use 3 devices'):
        config_lib.check(changed(seeds=(0, 1, 2, 3, 4, 5), parallel__devices=4))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'parallel__devices': 1}, 'parallel.devices=1 cannot be shared equally by 2 processes; use 0 for all'),
        ({'parallel__devices': 0, 'parallel__process_id': 2}, 'process_id=2 is out of range'),
        ({'parallel__devices': 0, 'algorithm': 'supervised_only'}, 'supervised_only has no clients to distribute'),
        ({'parallel__devices': 0, 'seeds': (0, 1)}, 'the trials of config.seeds run in one process'),
    ],
)
def test_processes_must_fit(changes, message):
    two = {'parallel__coordinator': 'host:123', 'parallel__num_processes': 2}
    config_lib.check(changed(**two, parallel__devices=0))
    with pytest.raises(UserError, match=re.escape(message)):
        config_lib.check(changed(**(two | changes)))


def test_a_host_that_is_unknown(monkeypatch):
    """JAX would try it for minutes, and abort."""

    def unknown(host, port):
        assert (host, port) == ('nowhere', 1234)
        raise socket.gaierror(-2, 'Name or service not known')

    monkeypatch.setattr(socket, 'getaddrinfo', unknown)
    with pytest.raises(UserError, match=r"the host 'nowhere' is unknown \(Name or service not known\); give the name"):
        hosts.join('nowhere:1234', 2, 1)
