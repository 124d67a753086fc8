"""Values of a configuration: their types and ranges, and the line that refuses a wrong one."""

import functools
import json
import math
import re

import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from configs import default
from semisfl_jax import config as config_lib
from semisfl_jax import models
from semisfl_jax.config import checks
from semisfl_jax.core.errors import UserError
from tests.settings import changed


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
        ('batch_size', 10**9),
        ('server_batch_size', 10**9),
        ('data.fake_size', 10**9),
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
        ('lr', 1e300, 'config.lr=1e+300 is beyond 3.4e+38, the largest float32; use a smaller number'),
        ('official_keys', None, 'config.official_keys=None has no value; use a tuple or a list'),
        ('cost__devices', 'jetson_tx2', "config.cost.devices='jetson_tx2' is a str; use a tuple or a list"),
        ('cost__devices', [[1]], 'config.cost.devices holds [1], which is not a str; use names'),
        ('data__tasks', [3], 'config.data.tasks holds 3, which is not a str; use names'),
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
