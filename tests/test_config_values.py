"""What the table of keys says is what a configuration takes: a wrong value is refused by key and value, in one line."""

import functools
import json
import math

import hypothesis
import hypothesis.strategies as st
import pytest
from ml_collections import ConfigDict, FrozenConfigDict

from configs import default
from semisfl_jax import algorithms, models
from semisfl_jax import config as config_lib
from semisfl_jax.config import ignored_keys, keys
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.keys import choices_of, rules
from tests.settings import changed

FIELDS = keys.fields()
OF_SEVERAL_KEYS = [
    ('federation.num_active', 31),
    ('lr_min', 0.03),
    ('frequency.horizon', 105),
    ('frequency.horizon', 10),
]
OF_SEVERAL_KEYS += [('augment.scale_min', 1.5), ('augment.scale_max', 0.9), ('data.client_labels', 4000), ('k_s', 0)]
OF_SEVERAL_KEYS += [('parallel.devices', 11), ('parallel.num_processes', 2), ('parallel.process_id', 1)]
OF_SEVERAL_KEYS += [('parallel.coordinator', address) for address in ('localhost', 'localhost:0', 'localhost:65536')]
OF_SEVERAL_KEYS += [('federation.mismatch', -0.5), ('cost.client_out', (2.0, 1.0))]


def of_json(changes):
    """The default configuration as if read from a file, with changes of any type."""
    content = json.loads(default.get_config().to_json())
    for key, value in changes.items():
        *groups, name = key.split('.')
        functools.reduce(dict.get, groups, content)[name] = value
    return ConfigDict(content)


def beyond(field):
    """Numbers that a key cannot have."""
    rule, integer = rules(field), isinstance(field.default, int)
    edges = [math.inf, -math.inf, math.nan] if not integer else [2**31 + 2**32, -(2**31) - 1]
    edges += [rule['at_least'] - 1, rule['at_most'] + 1, rule['above'], rule['below']]
    return [int(edge) if integer else float(edge) for edge in edges if not integer or math.isfinite(edge)]


@st.composite
def wrong(draw):
    key = draw(st.sampled_from(sorted(FIELDS)))
    field = FIELDS[key]
    kind = keys.type_of(key, field)
    fits = {int: (int,), float: (int, float), bool: (bool,), str: (str,), tuple: (tuple, list)}[kind]
    values = [value for value in (None, b'bytes', True, 3, 2.5, 'text', [1]) if type(value) not in fits]
    if key == 'model.split_index':
        values.remove(None)
    values += beyond(field) if kind in (int, float) and key not in ('model.split_index', 'model.output_stride') else []
    if choices_of(field):
        values.append(draw(st.text('abc_0', min_size=1).filter(lambda name: name not in choices_of(field))))
    return key, draw(st.sampled_from(values))


def check_refused(key, value, config):
    with pytest.raises(UserError) as error:
        config_lib.check(config)
    message = str(error.value)
    assert f'{key}=' in message
    assert repr(value) in message or str(value) in message
    assert '\n' not in message


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(wrong())
def test_a_wrong_value_is_refused_with_its_key_and_value(case):
    key, value = case
    check_refused(key, value, of_json({key: value}))


@pytest.mark.parametrize(('key', 'value'), OF_SEVERAL_KEYS)
def test_so_is_one_that_another_key_does_not_allow(key, value):
    check_refused(key, value, of_json({key: value}))


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'data.tasks': [3]}, 'config.data.tasks holds 3'),
        ({'cost.devices': [[1]]}, 'config.cost.devices holds [1]'),
        ({'cost.devices': []}, 'config.cost.devices is empty'),
        ({'lr': 1e300}, 'config.lr=1e+300'),
        ({'federation': 3}, 'config.federation is a group of keys'),
        ({'seeds': [0, 0]}, 'config.seeds holds 0'),
        ({'seeds': [1.5]}, 'config.seeds holds 1.5'),
        ({'seeds': [2**32]}, f'config.seeds holds {2**32}'),
        ({'seeds': [1], 'seed': 2}, 'config.seed=2 and config.seeds=(1,)'),
        ({'algorithm': 'm_fed', 'model.name': 'scene_net', 'data.tasks': ['depth'], 'k_s': 0, 'data.client_labels': 1},
         'config.data.client_labels=1'),
    ],
)  # fmt: skip
def test_other_wrong_values(changes, named):
    with pytest.raises(UserError) as error:
        config_lib.check(of_json(changes))
    assert named in str(error.value)


def test_a_configuration_from_json_is_valid():
    config_lib.check(of_json({}))
    config_lib.check(of_json({'seeds': [1, 2], 'lr': 1, 'model.split_index': 2, 'cost.client_out': [1, 2]}))
    resolved = config_lib.resolve(default.get_config())
    config_lib.check(ConfigDict(json.loads(resolved.to_json())))


def test_a_frozen_configuration_is_the_same_experiment():
    config = default.get_config()
    config_lib.check(FrozenConfigDict(config))
    resolved = config_lib.resolve(FrozenConfigDict(config))
    assert resolved == config_lib.resolve(config)
    assert not isinstance(resolved.data, FrozenConfigDict)


@pytest.mark.parametrize('registry', ['ARCHITECTURES', 'DENSE_ARCHITECTURES'])
def test_a_model_that_a_user_registers_is_a_choice(registry, monkeypatch):
    with pytest.raises(UserError, match=r"config.model.name='qq' is unknown; use one of small_cnn, .*resnet101$"):
        config_lib.check(changed(model__name='qq'))
    monkeypatch.setitem(getattr(models, registry), 'qq', None)
    assert 'qq' in choices_of(FIELDS['model.name'])
    if registry == 'ARCHITECTURES':
        config_lib.check(changed(model__name='qq'))


def method_of(key, field):
    """A method that reads a key."""
    feature, group = rules(field)['feature'], key.split('.')[0]
    options = algorithms.registry.option_groups()
    reads = (lambda m: m.option_group == group) if group in options else (lambda m: not feature or feature in m.uses)
    return min((m for m in algorithms.METHODS.values() if reads(m) and m.clients), key=lambda method: method.dense)


IDLE = [(key, other, at) for key, field in FIELDS.items() for other, at in rules(field)['idle'].items()]
WITHOUT = {'clients': 'supervised_only', 'memory queue': 'fedavg', 'projection head': 'fedavg'}


@pytest.mark.parametrize(('key', 'other', 'at'), IDLE)
def test_a_key_is_idle_where_the_table_says_so(key, other, at):
    for value in at if isinstance(at, tuple) else (at,):
        config = changed(algorithm=method_of(key, FIELDS[key]).name)
        assert f'{other}=' not in ignored_keys.find(config).get(key, '')
        config.update_from_flattened_dict({other: value})
        assert f'{other}={value!r}' in ignored_keys.find(config)[key]


def test_a_key_is_idle_without_its_part():
    for key, field in FIELDS.items():
        if part := rules(field)['part']:
            why = ignored_keys.find(changed(algorithm=WITHOUT[part]))[key]
            assert f'{WITHOUT[part]} has no ' in why


@pytest.mark.parametrize('key', FIELDS)
def test_the_help_on_a_key_says_what_the_table_does(key):
    text, field = ' '.join(keys.help_of(key).split()), FIELDS[key]
    assert text.startswith(f'config.{key} = {field.default!r} ')
    words = keys.meaning(key, field), keys.values(field), *rules(field)['idle'], rules(field)['part']
    assert all(' '.join(word.split()) in text for word in words)
    assert len(keys.meaning(key, field)) > 0
    if rules(field)['feature'] or key.split('.')[0] in algorithms.registry.option_groups():
        assert method_of_any(key, field) in text


def method_of_any(key, field):
    feature, group = rules(field)['feature'], key.split('.')[0]
    methods = algorithms.METHODS.items()
    return next(name for name, each in methods if (feature in each.uses if feature else each.option_group == group))


def test_the_help_on_a_group_has_its_keys():
    text = keys.help_of('config.federation')
    assert all(f'config.{key} = ' in text for key in FIELDS if key.startswith('federation.'))
    with pytest.raises(UserError, match=r'config\.federation\.alfa is not a key; did you mean config.federation.alpha'):
        keys.help_of('federation.alfa')
