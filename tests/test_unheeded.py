"""Keys that have no effect beside another one: the command says so, and of no other key."""

import logging

import pytest

import launch
import semisfl_jax as sfl
from semisfl_jax.config import ignored_keys
from semisfl_jax.models import zoo
from semisfl_jax.training import events, loop
from tests import runs

SUPERVISED = {'algorithm': 'fedavg', 'local.objective': 'supervised'}
MEAN_TEACHER = {'algorithm': 'fedavg', 'local.objective': 'mean_teacher'}
LABELS_ALONE = {'data.client_labels': -1, 'k_s': 0}
WEAK = {'augment.supervised': 'weak'}
# What is idle by more than the table of keys says (tests/test_config_values.py), and the key or name that makes it so
IDLE = [
    ({'federation.partition': 'uniform', 'federation.alpha': 3.0}, 'federation.partition='),
    ({'federation.max_images': 90}, 'federation.partition='),
    ({'federation.classes_per_client': 3}, 'federation.partition='),
    ({'federation.labeled_alpha': 0.5}, 'federation.partition='),
    ({'federation.labeled_partition': 'dirichlet'}, 'data.client_labels'),
    ({'federation.mu': 3}, 'data.client_labels'),
    ({'data.partition_file': 'a.npz', 'federation.partition': 'uniform'}, 'data.partition_file'),
    ({'k_s_rule': 'fixed', 'frequency.beta': 2.0}, "k_s_rule='fixed'"),
    ({'cost.enabled': False, 'cost.efficiency': 0.5}, 'cost.enabled=False'),
    ({'algorithm': 'fedavg', 'local.epochs': 1, 'k_u': 7}, 'local.epochs=1'),
    ({'cost.enabled': False, 'failures.deadline_seconds': 0.3, 'cost.server_teraflops': 1.0}, 'cost.enabled=False'),
    ({'model.batch_norm_variance': 'unbiased'}, "model.name='small_cnn'"),
    ({'algorithm': 'semifl', 'semifl.batch_norm_data': 'server'}, "model.name='small_cnn'"),
    ({'client_teacher_bn': 'train'}, "model.name='small_cnn'"),
    ({**SUPERVISED, 'data.client_labels': -1, 'federation.mu': 3}, 'labeled images alone'),
    ({**SUPERVISED, 'data.client_labels': 20, 'federation.mu': 3}, 'labeled images alone'),
    ({'parallel.trials': 'loop'}, 'seeds'),
    ({'algorithm': 'fed_shvr', 'threshold': 0.8}, 'fed_shvr'),
    ({'algorithm': 'splitfed', **LABELS_ALONE, 'threshold': 0.8}, 'splitfed'),
    ({**MEAN_TEACHER, 'threshold': 0.8}, "local.objective='mean_teacher'"),
    ({**SUPERVISED, 'data.client_labels': -1, 'threshold': 0.8}, "local.objective='supervised'"),
    ({**SUPERVISED, 'data.client_labels': -1, 'consistency_weight': 0.5}, "local.objective='supervised'"),
    ({**WEAK, 'algorithm': 'fed_svr', 'augment.operations': 1}, 'fed_svr'),
    ({**WEAK, **MEAN_TEACHER, 'augment.cutout': 2}, "local.objective='mean_teacher'"),
    ({'pseudo_labels': 'none', 'consistency_weight': 0.5}, "pseudo_labels='none'"),
    ({'pseudo_labels': 'none', 'k_s_rule': 'code'}, "pseudo_labels='none'"),
    ({'algorithm': 'fedavg', 'frequency.period': 4}, "k_s_rule='auto' of fedavg"),
    ({'algorithm': 'fedavg', 'data.residency': 'host', 'semifl.batch_norm_data': 'server'}, 'fedavg'),
    ({'algorithm': 'supervised_only', 'federation.alpha': 4.0}, 'supervised_only'),
    ({'algorithm': 'splitfed', **LABELS_ALONE, 'data.num_labeled': 50}, 'all images are at the clients'),
    ({'algorithm': 'splitfed', **LABELS_ALONE, 'k_s_rule': 'paper'}, 'k_s=0'),
    ({'data.client_labels': 20, 'federation.ignored_labeled': 'unlabeled'}, 'data.client_labels=20'),
    ({'momentum': 0.0, 'local.optimizer_state': 'fresh'}, 'momentum=0'),
]
HEEDED = [
    {'federation.alpha': 3.0},
    {'federation.partition': 'classes', 'federation.classes_per_client': 3},
    {'data.client_labels': 20, 'federation.labeled_partition': 'dirichlet', 'federation.labeled_alpha': 0.5},
    {'data.client_labels': 20, 'federation.mu': 3},
    {'queue_size': 64, 'threshold': 0.8, 'k_u': 7, 'frequency.beta': 2.0},
    {'cost.enabled': False},
    {'pseudo_labels': 'none', 'queue': 'off', 'k_s_rule': 'fixed'},
    {'cost.enabled': False, 'failures.deadline_seconds': 0.3, 'cost.efficiency': 1e-4, 'cost.client_out': (1.0, 2.0)},
    {'algorithm': 'fedavg', 'local.epochs': 1, 'k_s_rule': 'paper', 'k_u': 7},  # K_min is a share of K_u
    {'pseudo_labels': 'true', 'diagnostics_every': 1, 'threshold': 0.8},  # of the pseudo-labels in the diagnostics
    {'model.name': 'cnn13', 'model.batch_norm_variance': 'unbiased'},
    {'algorithm': 'semifl', 'data.residency': 'host', 'semifl.batch_norm_data': 'server'},  # 'all' is refused there
    {'algorithm': 'fedmatch', 'fedmatch.helper_every': 3, 'fedmatch.lambda_i': 0.5},
    {'pre_rounds': 149},
    {'seeds': (0, 1), 'parallel.trials': 'loop'},
    {'algorithm': 'fed_shvr', 'augment.operations': 1},  # in the views of labeled images
    {'algorithm': 'fed_shvr', 'diagnostics_every': 1, 'threshold': 0.8},
    {**MEAN_TEACHER, 'consistency_weight': 0.5, 'augment.supervised': 'weak', 'augment.crop': 0.0},
    {**WEAK, 'algorithm': 'fedavg', 'threshold': 0.8, 'augment.operations': 1},
]


def told(changes, caplog):
    with caplog.at_level(logging.WARNING, 'semisfl_jax'):
        ignored_keys.warn_ignored_keys(sfl.get_config('digits', changes), changes)
    return [record.message for record in caplog.records]


@pytest.mark.parametrize(('changes', 'why'), IDLE)
def test_a_key_without_effect_is_told(changes, why, caplog):
    *_, (key, value) = changes.items()
    (message,) = [message for message in told(changes, caplog) if message.startswith(f'config.{key}={value} ')]
    assert why in message


@pytest.mark.parametrize('changes', HEEDED)
def test_no_other_key_is(changes, caplog):
    assert told(changes, caplog) == []


def test_keys_of_one_reason_are_told_in_one_line(caplog):
    changes = {'algorithm': 'supervised_only', 'k_u': 3, 'queue_size': 64, 'batch_size': 4}
    assert told(changes, caplog) == [
        'config.k_u=3, config.batch_size=4 have no effect: supervised_only has no clients',
        'config.queue_size=64 has no effect: supervised_only has no memory queue',
    ]


def test_clients_that_never_train_are_told(caplog):
    (message,) = told({'rounds': 5, 'pre_rounds': 5}, caplog)
    assert 'config.pre_rounds=5 leaves the clients none of rounds=5' in message


def test_a_users_own_model_may_have_batch_norm(monkeypatch, caplog):
    small_cnn = zoo.ARCHITECTURES['small_cnn']
    monkeypatch.setitem(zoo.ARCHITECTURES, 'own', lambda *arguments: small_cnn(*arguments))
    assert told({'model.name': 'own', 'model.batch_norm_variance': 'unbiased'}, caplog) == []


def test_the_command_tells_it_and_goes_on(monkeypatch, capsys):
    trained = []

    def train(config, folder, on_event, **_):
        on_event(events.Described([], None))
        trained.append(config)

    monkeypatch.setattr(loop, 'train_resolved', train)
    words = ['--config.federation.partition=uniform', '--config.federation.alpha=3']
    assert launch.main(['launch.py', runs.DIGITS, *words]) == 0
    assert capsys.readouterr().err == (
        "warning: config.federation.alpha=3.0 has no effect: federation.partition='uniform' draws from no Dirichlet "
        'distribution\n'
    )
    assert trained[0].federation.alpha == 3.0
