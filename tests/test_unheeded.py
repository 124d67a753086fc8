"""Keys that have no effect beside another one: the command says so, and of no other key."""

import logging

import pytest

import launch
import semisfl_jax as sfl
from semisfl_jax import loop
from semisfl_jax.config import unheeded
from semisfl_jax.training import events
from tests import runs

IDLE = [
    ({'federation.partition': 'uniform', 'federation.alpha': 3.0}, "federation.partition='uniform' draws from no "),
    ({'federation.max_images': 90}, "federation.partition='dirichlet' does not read it"),
    ({'federation.classes_per_client': 3}, "federation.partition='dirichlet' does not read it"),
    ({'federation.labeled_alpha': 0.5}, "federation.partition='dirichlet' does not read it"),
    ({'federation.labeled_partition': 'dirichlet'}, 'no labels are at the clients (data.client_labels)'),
    ({'federation.mu': 3}, 'no labels are at the clients (data.client_labels)'),
    ({'data.partition_file': 'a.npz', 'federation.partition': 'uniform'}, 'the split is that of data.partition_file'),
    ({'queue': 'off', 'queue_size': 64}, "queue='off'"),
    ({'pseudo_labels': 'none', 'threshold': 0.8}, "pseudo_labels='none' needs none"),
    ({'pseudo_labels': 'true', 'threshold': 0.8}, "pseudo_labels='true' needs none"),
    ({'k_s_rule': 'fixed', 'frequency.beta': 2.0}, "k_s_rule='fixed'"),
    ({'cost.enabled': False, 'cost.efficiency': 0.5}, 'cost.enabled=False'),
    ({'algorithm': 'fedavg', 'local.epochs': 1, 'k_u': 7}, 'clients make local.epochs=1 passes'),
    ({'augment.operations': 0, 'augment.magnitude': 5}, 'augment.operations=0'),
    ({'parallel.trials': 'loop'}, 'it is about several seeds (seeds)'),
]
HEEDED = [
    {'federation.alpha': 3.0},
    {'federation.partition': 'classes', 'federation.classes_per_client': 3},
    {'data.client_labels': 20, 'federation.labeled_partition': 'dirichlet', 'federation.labeled_alpha': 0.5},
    {'data.client_labels': 20, 'federation.mu': 3},
    {'queue_size': 64, 'threshold': 0.8, 'k_u': 7, 'frequency.beta': 2.0},
    {'cost.enabled': False},
    {'algorithm': 'fedavg', 'frequency.period': 4},  # where K_s does not change either, but by the method alone
    {'pseudo_labels': 'none', 'queue': 'off', 'k_s_rule': 'fixed'},
    {'seeds': (0, 1), 'parallel.trials': 'loop'},
]


def told(changes, caplog):
    with caplog.at_level(logging.WARNING, 'semisfl_jax'):
        unheeded.tell(sfl.get_config('digits', changes), changes)
    return [record.message for record in caplog.records]


@pytest.mark.parametrize(('changes', 'why'), IDLE)
def test_a_key_without_effect_is_told(changes, why, caplog):
    *_, (key, value) = changes.items()
    (message,) = told(changes, caplog)
    assert message.startswith(f'config.{key}={value} has no effect: {why}')


@pytest.mark.parametrize('changes', HEEDED)
def test_no_other_key_is(changes, caplog):
    assert told(changes, caplog) == []


def test_the_command_tells_it_and_goes_on(monkeypatch, capsys):
    trained = []

    def train(config, folder, on_event, **_):
        on_event(events.Described([], None))
        trained.append(config)

    monkeypatch.setattr(loop, 'train', train)
    words = ['--config.federation.partition=uniform', '--config.federation.alpha=3']
    assert launch.main(['launch.py', runs.DIGITS, *words]) == 0
    assert capsys.readouterr().err == (
        "warning: config.federation.alpha=3.0 has no effect: federation.partition='uniform' draws from no Dirichlet "
        'distribution\n'
    )
    assert trained[0].federation.alpha == 3.0
