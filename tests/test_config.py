"""Configurations: what is accepted, what is refused by key and value, what has no effect, what makes two of them one
experiment."""

import ast
import contextlib
import functools
import json
import logging
import math
import socket
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import pytest
from ml_collections import ConfigDict

import semisfl_jax as sfl
from configs import default
from configs.studies import scales
from semisfl_jax import algorithms, models
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import registry
from semisfl_jax.config import checks, ignored_keys, keys
from semisfl_jax.core import hosts
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core.errors import UserError, did_you_mean
from semisfl_jax.core.keys import choices_of, rules
from semisfl_jax.models import zoo
from tests import needs, rows, runs
from tests.settings import NAMES, changed, get

FIELDS = keys.fields()
# Data set, model, labels: Section V of the paper. B, B_s, supervised-only rounds: the authors' code.
PAPER = {
    'cifar10': ('cifar10', 'alexnet', 4000, 64, 64, 0),
    'svhn': ('svhn_cropped', 'cnn', 1000, 64, 64, 0),
    'stl10': ('stl10', 'vgg13', 5000, 32, 64, 0),
    'image100': ('image100', 'vgg16', 5000, 64, 128, 20),
}


@pytest.mark.parametrize(
    ('settings', 'values'),
    [
        ('paper', ['two_level', 'auto', 'eval', 'eval', 'biased', 'epochs']),
        ('code', ['single_ring', 'code', 'train', 'train_first_round', 'unbiased', 'replicated']),
    ],
)
@pytest.mark.parametrize('name', NAMES)
def test_every_configuration_is_valid_and_has_the_same_keys(name, settings, values):
    config = get(name, settings)
    config_lib.check(config)
    flat = config_lib.flatten(config)
    assert flat.keys() == config_lib.flatten(default.get_config()).keys()
    keys_of_code = 'queue k_s_rule client_teacher_bn server_teacher_bn model.batch_norm_variance sampling'
    assert [flat[key] for key in keys_of_code.split()] == values


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
@pytest.mark.parametrize('name', NAMES)
def test_every_configuration_takes_every_method(name, algorithm):
    """With no more keys than tests/needs.py has."""
    config = get(name)
    config.update_from_flattened_dict(needs.changes(algorithm))
    config_lib.check(config_lib.resolve(config))


@pytest.mark.parametrize('name', PAPER)
def test_the_papers_experiments(name):
    config = get(name)
    data_and_model = config.data.name, config.model.name, config.data.num_labeled
    assert (*data_and_model, config.batch_size, config.server_batch_size, config.pre_rounds) == PAPER[name]
    assert (config.rounds, config.k_s, config.k_u) == (1000, 100, 50)
    assert (config.federation.num_clients, config.federation.num_active) == (30, 10)
    assert (config.lr, config.lr_min, config.momentum, config.weight_decay) == (0.02, 0.005, 0.9, 5e-4)
    assert config.augment.supervised == ('weak' if name == 'svhn' else 'strong')


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_what_auto_means_for_a_method(algorithm):
    """K_s adapts in SemiSFL, also with client priors. SemiFL's authors keep their momentum, and clients that train
    alone have no rounds. Clients count by their images where the method's paper says so (the method's tests)."""
    meant = {
        'k_s_rule': {'semisfl': 'paper', 'semisfl_prior': 'coverage'}.get(algorithm, 'fixed'),
        'local.optimizer_state': 'kept' if algorithm in ('semifl', 'mfed_local') else 'fresh',
        'local.weighting': 'samples' if rows.rows()[algorithm].by_images else 'uniform',
    }
    config = default.get_config()
    config.update_from_flattened_dict(needs.changes(algorithm))
    resolved = config_lib.resolve(config)
    config_lib.check(resolved)
    assert {key: config_lib.flatten(resolved)[key] for key in meant} == meant


def test_the_hyper_parameters_are_those_of_the_configuration():
    """Defaults that the check compares with stand in HParams; a configuration must begin with the same."""

    def hparams(words):
        return config_lib.hparams(config_lib.resolve(of_json(changes_of(words))))

    assert hparams('lr_rounds=1000') == hparams_lib.HParams()
    made = hparams(f'{ALL_LABELS} k_s=0 batch_size=10')
    assert (made.labeled_rows, made.server_trains, made.local.objective) == (10, False, 'supervised')
    made = hparams('algorithm=fedavg data.client_labels=100')
    assert (made.labeled_rows, made.server_trains, made.batches) == (8, True, (50, 64, 8, 0, 'unlabeled', 'epochs'))


def test_the_default_folder_depends_on_the_resolved_configuration():
    def folder(**changes):
        return config_lib.default_workdir(config_lib.resolve(changed(**changes)), 'digits')

    plain = folder(rounds=70, lr_rounds=70)
    assert plain.startswith('runs/digits-')
    assert plain == folder(rounds=70, lr_rounds=0) == folder(rounds=99, lr_rounds=70)  # 0 means `rounds`
    assert plain != folder(rounds=99, lr_rounds=0)


def other(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    return {str: 'other', int: 12345, float: 0.12345, type(None): 2, list: (1, 2)}[type(value)]


KEYS_OF_NO_NUMBER = """
rounds checkpoint_every checkpoints_kept diagnostics_every compilation_cache official_keys data.data_dir data.cache_dir
data.residency parallel.coordinator parallel.num_processes parallel.process_id
"""


@pytest.mark.parametrize('key', config_lib.flatten(default.get_config()))
def test_a_key_changes_the_identity_if_it_changes_the_numbers(key):
    config = default.get_config()
    twin = changed(**{key: other(config_lib.flatten(config)[key])})
    inert = key in KEYS_OF_NO_NUMBER.split()
    assert (config_lib.identity_hash(config) == config_lib.identity_hash(twin)) == inert
    old = config.to_dict()
    differences = config_lib.differences(twin, old)
    assert [line.split(':')[0] for line in differences] == ([] if inert else [key])
    del old['queue_size']
    assert config_lib.differences(changed(lr=0.5), old) == ['lr: 0.02 -> 0.5', 'queue_size: (absent) -> 1024']


# Runs of users are found again by these numbers: who changes them loses all that were begun before
IDENTITIES = 'digits paper semisfl 16e698cd, cifar10 code semisfl df16983b, fashion_mnist paper fed_shvr 94ec45a7'


@pytest.mark.parametrize('words', IDENTITIES.split(', '))
def test_known_configurations_keep_their_identity(words):
    name, settings, algorithm, identity = words.split()
    config = get(name, settings)
    config.algorithm = algorithm
    assert config_lib.identity_hash(config_lib.resolve(config)).startswith(identity)


def of_json(changes):
    """The default configuration as if read from a file, with changes of any type."""
    content = json.loads(default.get_config().to_json())
    for key, value in changes.items():
        *groups, name = key.split('.')
        functools.reduce(dict.get, groups, content)[name] = value
    return ConfigDict(content)


def check_refused(key, value, config):
    """In one line, with its key and its value."""
    with pytest.raises(UserError) as error:
        config_lib.check(config)
    message, inner = str(error.value), value if isinstance(value, list | tuple) else ()
    assert key in message
    assert any(shown in message for shown in (str(value), *map(repr, (value, *inner))))
    assert '\n' not in message


@st.composite
def wrong(draw):
    """A key and a value that it cannot have, whatever the others are; or a key that there is not."""
    key = draw(st.sampled_from(sorted(FIELDS)))
    field, rule = FIELDS[key], rules(FIELDS[key])
    if draw(st.booleans()):
        at = draw(st.integers(key.rfind('.') + 1, len(key) - 1))
        return f'{key[:at]}{draw(st.sampled_from("xqz"))}{key[at:]}', ''
    kind = keys.type_of(key, field)
    fits = {int: (int,), float: (int, float), bool: (bool,), str: (str,), tuple: (tuple, list)}[kind]
    values = [value for value in (None, b'bytes', True, 3, 2.5, 'text', [1]) if type(value) not in fits]
    if key == 'model.split_index':
        values.remove(None)
    elif kind in (int, float) and key != 'model.output_stride':
        edges = [rule['at_least'] - 1, rule['at_most'] + 1, rule['above'], rule['below'], 2.0**33, -(2.0**33)]
        values += [int(edge) for edge in edges if math.isfinite(edge)] if kind is int else [*edges[:4], math.nan, 1e300]
    if choices_of(field):
        values.append(draw(st.text('abc_0', min_size=1).filter(lambda name: name not in choices_of(field))))
    return key, draw(st.sampled_from(values))


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(wrong())
def test_a_wrong_key_or_value_is_refused_by_name(case):
    key, value = case
    check_refused(key, value, of_json({key: value}))


def changes_of(words):
    """'lr=1 queue=off' -> {'lr': 1, 'queue': 'off'}"""
    changes = {}
    for key, value in (word.split('=', 1) for word in words.split()):
        changes[key] = value
        with contextlib.suppress(ValueError, SyntaxError):
            changes[key] = ast.literal_eval(value)
    return changes


ALONE = """
federation.num_active=31 lr_min=0.03 frequency.horizon=105 frequency.horizon=10 data.client_labels=4000 k_s=0
augment.scale_min=1.5 augment.scale_max=0.9 federation.mismatch=-0.5 cost.client_out=(2.0,1.0) cost.devices=[[1]]
data.tasks=[3] data.client_labels=-1 data.eval_split=validation seeds=[0,0] seeds=[1.5] seeds=[-1] seeds=[4294967296]
parallel.devices=11 parallel.num_processes=2 parallel.process_id=1 parallel.coordinator=localhost
parallel.coordinator=localhost:0 parallel.coordinator=localhost:65536
"""
TWO = 'parallel.num_processes=2 parallel.devices=0 parallel.coordinator=host:123'
SUPERVISED = 'algorithm=fedavg local.objective=supervised'
ALL_LABELS = f'{SUPERVISED} data.client_labels=-1'
SPLITFED = 'algorithm=splitfed k_s=0 data.client_labels=-1'
BESIDE_OTHERS = [
    f'{TWO} parallel.process_id=2',
    f'algorithm=supervised_only {TWO}',
    f'seeds=(0,1) {TWO}',
    'seeds=(0,1,2,3,4,5) parallel.devices=4',
    'seeds=[1] seed=2',
    'data.client_labels=100 federation.mu=7 batch_size=60',
    SUPERVISED,  # without a label
    f'{SUPERVISED} data.client_labels=9 federation.mu=0',
    'algorithm=fedswitch data.client_labels=9 k_s=0',
    'algorithm=fedavg local.epochs=2 sampling=replicated',
    'algorithm=fedavg uda.temperature=0.4',
    'algorithm=fedavg local.objective=uda uda.tsa=log',
    'algorithm=fedmatch fedmatch.helpers=30',
    'algorithm=semifl local.epochs=2 semifl.max_passes=3',
    'algorithm=semifl data.residency=host semifl.batch_norm_data=all',
    'optimizer=adam nesterov=True',
    'algorithm=fedswitch setting=official',
    "algorithm=m_fed model.name=scene_net data.tasks=['depth'] k_s=0 data.client_labels=1",
    'failures.inside=0.6 failures.before=0.6',
    'failures.trace=nowhere.csv failures.inside=0.5',
    'algorithm=supervised_only failures.before=0.5',
    'data.num_unlabeled=29',
    'federation.max_images=19 federation.min_images=20',
    'data.client_labels=90 federation.mu=0 federation.mismatch=0.0',
    "algorithm=mfed_fl model.name=scene_net data.tasks=['depth'] k_s=0 data.client_labels=-1 augment.supervised=weak "
    'federation.labeled_partition=uniform',
    'model.name=resnet9 cost.bill_model_size=paper',
    'algorithm=fedswitch_sl client_teacher_ema=True fedswitch.mode=student',
    'algorithm=fedswitch_sl setting=official',
    'algorithm=semisfl_prior setting=official',
    'algorithm=semisfl_prior prior.decay=1.5',
    f'{ALL_LABELS} pseudo_labels=true',
    f'{SPLITFED} k_s=20',
    f'{SPLITFED} data.client_labels=4001',
    f'{SPLITFED} splitfed.version=v2 parallel.devices=2',
    f'{SPLITFED} splitfed.version=v2 parallel.coordinator=host:1',
    f'{SPLITFED} splitfed.version=v2 federation.client_chunk=3',
]


@pytest.mark.parametrize('words', [*ALONE.split(), *BESIDE_OTHERS])
def test_what_other_keys_do_not_allow_is_refused_by_name(words):
    """The last one."""
    changes = changes_of(words)
    *_, (key, value) = changes.items()
    check_refused(key, value, of_json(changes))


def valid_other(key):
    """Another value of a key that is valid on its own."""
    value = config_lib.flatten(default.get_config())[key]
    if choices := choices_of(FIELDS[key]):
        resolved = hparams_lib.shared_defaults().get(key)  # of 'auto'
        return next(choice for choice in choices if choice not in (value, resolved))
    if isinstance(value, bool):
        return not value
    if isinstance(value, str | list):
        return 'encoder.npz' if isinstance(value, str) else ('semseg',)
    return (value / 2 or 0.5) if isinstance(value, float) else (value or 0) + 1


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_options_that_a_method_has_no_use_for_and_no_label_are_refused(algorithm):
    unused = [{key: valid_other(key)} for key in checks.unused(algorithms.get(algorithm))]
    no_label = {'k_s': 0, 'data.client_labels': 0}, {'k_s': 0, 'data.client_labels': 100, 'federation.mu': 0}
    for changes in (*unused, *no_label):
        config = default.get_config()
        config.update_from_flattened_dict(needs.changes(algorithm) | changes)
        with pytest.raises(UserError) as error:
            config_lib.check(config)
        message, key = str(error.value), next(iter(changes))
        assert '\n' not in message
        if changes in no_label:
            assert 'label' in message
        else:
            assert f'config.{key}={config_lib.flatten(config)[key]} ' in message
            assert algorithm in message


def test_a_host_that_is_unknown(monkeypatch):
    """JAX would try it for minutes, and abort."""
    monkeypatch.setattr(socket, 'getaddrinfo', mock.Mock(side_effect=socket.gaierror(-2, 'unknown')))
    with pytest.raises(UserError, match='nowhere'):
        hosts.join('nowhere:1234', 2, 1)


def test_a_model_that_a_user_registers_is_a_choice_and_may_have_batch_norm(monkeypatch, caplog):
    check_refused('model.name', 'own', changed(model__name='own'))
    small_cnn = zoo.ARCHITECTURES['small_cnn']
    monkeypatch.setitem(models.ARCHITECTURES, 'own', lambda *arguments: small_cnn(*arguments))
    assert told('model.name=own model.batch_norm_variance=unbiased', caplog) == []


MEANT = {
    'algoritm': 'algorithm',
    'federation.num_client': 'federation.num_clients',
    'fedswich.mode': 'fedswitch.mode',
    'learning_rate': 'lr',
    'train.epochs': 'local.epochs',
    **dict.fromkeys(('name', 'rate', 'xyz', 'model.width', 'devices_per_client'), ''),  # it is not clear
}


def test_what_was_probably_meant():
    """In programs; tests/test_cli.py has the command."""
    assert {word: keys.meant(word, FIELDS) for word in MEANT} == MEANT
    assert did_you_mean('fedavg', ('two_level', 'off')) == ''
    with pytest.raises(UserError, match=r'none / uniform: config\.queu is not .*config\.queue\b'):
        scales.cell('smoke', 'none', 'uniform', 'cifar10', {'queu': 'off'})
    config = default.get_config()
    del config.k_u
    with pytest.raises(UserError, match=r'config\.k_u\b'):
        config_lib.check(config)


def method_of(key):
    """A method that reads a key."""
    feature, group = rules(FIELDS[key])['feature'], key.split('.')[0]
    options = registry.option_groups()
    reads = (lambda m: m.option_group == group) if group in options else (lambda m: not feature or feature in m.uses)
    return min((m for m in algorithms.METHODS.values() if reads(m) and m.clients), key=lambda method: method.dense)


def test_a_key_is_idle_where_the_table_says_so():
    without = {'clients': 'supervised_only', 'memory queue': 'fedavg', 'projection head': 'fedavg'}
    for key, field in FIELDS.items():
        for other_key, at in rules(field)['idle'].items():
            for value in at if isinstance(at, tuple) else (at,):
                config = changed(algorithm=method_of(key).name)
                assert f'{other_key}=' not in ignored_keys.find(config).get(key, '')
                config.update_from_flattened_dict({other_key: value})
                assert f'{other_key}={value!r}' in ignored_keys.find(config)[key]
        if part := rules(field)['part']:
            assert without[part] in ignored_keys.find(changed(algorithm=without[part]))[key]


MEAN_TEACHER = 'algorithm=fedavg local.objective=mean_teacher'
IDLE = {  # by more than the table says: the last key, and what makes it so
    'federation.partition=uniform federation.alpha=3.0': 'federation.partition=',
    'data.client_labels=20 federation.ignored_labeled=unlabeled': 'data.client_labels=20',
    'data.partition_file=a.npz federation.partition=uniform': 'data.partition_file',
    'cost.enabled=False failures.deadline_seconds=0.3 cost.server_teraflops=1.0': 'cost.enabled=False',
    'algorithm=fedavg local.epochs=1 k_u=7': 'local.epochs=1',
    f'{ALL_LABELS} federation.mu=3': 'labeled images alone',
    'algorithm=fed_shvr threshold=0.8': 'fed_shvr',
    'algorithm=supervised_only k_s_rule=coverage': 'pseudo-labels',
    'k_s_rule=coverage frequency.beta=2.0': 'coverage',
    f'{ALL_LABELS} consistency_weight=0.5': "local.objective='supervised'",
    'augment.randaugment=fedmatch augment.operations=3': "augment.randaugment='fedmatch'",
    'augment.supervised=weak algorithm=fed_svr augment.operations=1': 'fed_svr',
    f'augment.supervised=weak {MEAN_TEACHER} augment.cutout=2': "local.objective='mean_teacher'",
}
HEEDED = [
    'seeds=(0,1,2,3,4,5) parallel.devices=3',
    'federation.alpha=3.0 queue_size=64 threshold=0.8 k_u=7 frequency.beta=2.0',
    'data.client_labels=20 federation.labeled_partition=dirichlet federation.labeled_alpha=0.5 federation.mu=3',
    'cost.enabled=False failures.deadline_seconds=0.3 cost.efficiency=1e-4 cost.client_out=(1.0,2.0)',
    'algorithm=fedavg local.epochs=1 k_s_rule=paper k_u=7',  # K_min is a share of K_u
    'algorithm=semifl data.residency=host semifl.batch_norm_data=server',  # 'all' is refused there
    'algorithm=fed_shvr augment.operations=1',  # in the views of labeled images
    f'{SPLITFED} batch_size=60',  # which federation.mu does not divide
]


def told(words, caplog):
    changes = changes_of(words)
    with caplog.at_level(logging.WARNING, 'semisfl_jax'):
        ignored_keys.warn_ignored_keys(sfl.get_config('digits', changes), changes)
    return [record.message for record in caplog.records]


@pytest.mark.parametrize('words', IDLE)
def test_a_key_without_effect_is_told(words, caplog):
    *_, (key, value) = changes_of(words).items()
    (message,) = [message for message in told(words, caplog) if f'config.{key}={value} ' in message]
    assert IDLE[words] in message


@pytest.mark.parametrize('words', HEEDED)
def test_no_other_key_is(words, caplog):
    assert told(words, caplog) == []
    config_lib.check(of_json(changes_of(words)))  # as from a file


def test_one_line_for_each_reason_and_for_clients_that_never_train(caplog):
    first, second = told('algorithm=supervised_only k_u=3 queue_size=64 batch_size=4', caplog)
    assert 'config.k_u=3, config.batch_size=4 ' in first
    assert 'config.queue_size=64 ' in second
    caplog.clear()
    (message,) = told('rounds=5 pre_rounds=5', caplog)
    assert 'config.pre_rounds=5' in message


def test_the_command_tells_it_and_goes_on(tmp_path, capsys):
    assert runs.run(tmp_path, algorithm='supervised_only', rounds=1, federation__alpha=3.0, cost__enabled=False) == 0
    error = capsys.readouterr().err
    assert error.startswith('warning: config.federation.alpha=3.0 ')
    assert error.count('\n') == 1
    assert not runs.records(tmp_path)[0].keys() & {'bytes_up', 'simulated_seconds'}


def test_the_help_on_a_key_says_what_the_table_does():
    for key, field in FIELDS.items():
        text, rule = ' '.join(keys.help_of(key).split()), rules(field)
        assert text.startswith(f'config.{key} = {field.default!r} ')
        words = keys.meaning(key, field), keys.values(field), *rule['idle'], rule['part']
        assert all(' '.join(word.split()) in text for word in words)
        assert len(keys.meaning(key, field)) > 0
        if rule['feature'] or key.split('.')[0] in registry.option_groups():
            assert method_of(key).name in text
    text = keys.help_of('config.federation')
    assert all(f'config.{key} = ' in text for key in FIELDS if key.startswith('federation.'))
    with pytest.raises(UserError, match=r'config\.federation\.alfa .*config\.federation\.alpha'):
        keys.help_of('federation.alfa')
