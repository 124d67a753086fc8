"""Keys without effect are told, with the reason, and no others."""

import pytest
from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax.config import ignored_keys, keys
from tests.helpers import runs
from tests.helpers.settings import changed, changes_of, from_json, method_reading

FIELDS = keys.fields()
SUPERVISED = 'algorithm=fedavg local.objective=supervised'
ALL_LABELS = f'{SUPERVISED} data.client_labels=-1'
SPLITFED = 'algorithm=splitfed k_s=0 data.client_labels=-1'
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


def test_a_key_is_idle_where_the_table_says_so():
    without = {'clients': 'supervised_only', 'memory queue': 'fedavg', 'projection head': 'fedavg'}
    for key, field in FIELDS.items():
        for other_key, at in field.metadata['idle'].items():
            for value in at if isinstance(at, tuple) else (at,):
                config = changed(algorithm=method_reading(key).name)
                assert f'{other_key}=' not in ignored_keys.find(config).get(key, '')
                config.update_from_flattened_dict({other_key: value})
                assert f'{other_key}={value!r}' in ignored_keys.find(config)[key]
        if part := field.metadata['part']:
            assert without[part] in ignored_keys.find(changed(algorithm=without[part]))[key]


def told(words):
    changes = changes_of(words)
    return list(ignored_keys.warnings(sfl.get_config('digits', changes), changes))


@pytest.mark.parametrize('words', IDLE)
def test_a_key_without_effect_is_told(words):
    *_, (key, value) = changes_of(words).items()
    (message,) = [message for message in told(words) if f'config.{key}={value} ' in message]
    assert IDLE[words] in message


@pytest.mark.parametrize('words', HEEDED)
def test_a_key_with_an_effect_is_not_told(words):
    assert told(words) == []
    config_lib.check(from_json(changes_of(words)))  # as from a file


def test_one_line_for_each_reason_and_for_clients_that_never_train():
    first, second = told('algorithm=supervised_only k_u=3 queue_size=64 batch_size=4')
    assert 'config.k_u=3, config.batch_size=4 ' in first
    assert 'config.queue_size=64 ' in second
    (message,) = told('rounds=5 pre_rounds=5')
    assert 'config.pre_rounds=5' in message


@pytest.mark.parametrize('name', ['digits', 'cifar10:code', 'mnist'])
def test_what_a_file_or_a_paper_gives_is_no_change_of_the_user(name):
    config = sfl.get_config(name, algorithm='fed_shvr', setting='official', threshold=0.8)
    config.queue_size = 96
    began = sfl.get_config(name)
    assert ignored_keys.changed(began) == []
    of_user = {*ignored_keys.changed(config)} - {'official_keys'}
    assert of_user == {'algorithm', 'setting', 'threshold', 'queue_size'}
    queue_size, threshold = ignored_keys.warnings(config, ignored_keys.changed(config))
    assert 'config.queue_size=96 has no effect' in queue_size
    assert 'config.threshold=0.8 has no effect' in threshold
    assert ignored_keys.changed(ConfigDict(config.to_dict())) == []  # as from a file


def test_the_command_tells_it_and_goes_on(tmp_path, capsys):
    assert runs.run(tmp_path, algorithm='supervised_only', rounds=1, federation__alpha=3.0, cost__enabled=False) == 0
    error = capsys.readouterr().err
    assert error.startswith('warning: config.federation.alpha=3.0 ')
    assert error.count('\n') == 1
    assert not runs.records(tmp_path)[0].keys() & {'bytes_up', 'simulated_seconds'}
