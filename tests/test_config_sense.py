"""Combinations of keys: those that make sense, and the line that refuses the others."""

import re
import socket

import pytest

from configs import default
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import registry
from semisfl_jax.config import checks, keys
from semisfl_jax.core import hosts
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.keys import choices_of
from tests import needs
from tests.settings import SUPERVISED, changed

UDA = {'algorithm': 'fedavg', 'local__objective': 'uda'}


@pytest.mark.parametrize(
    'changes',
    [
        {'data__client_labels': 100, 'federation__mu': 7, 'batch_size': 64},
        {'data__client_labels': 0, 'federation__mu': 7, 'batch_size': 60},
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
        {'seeds': (0, 1, 2, 3, 4, 5), 'parallel__devices': 3},
    ],
)
def test_combinations_that_make_sense(changes):
    config_lib.check(changed(**changes))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'data__client_labels': 100, 'federation__mu': 7, 'batch_size': 60}, 'multiple of 8'),
        (SUPERVISED, "data.client_labels=0: local.objective='supervised' trains only on labels"),
        (SUPERVISED | {'data__client_labels': 9, 'federation__mu': 0}, 'federation.mu=0 ignores the labels'),
        ({'algorithm': 'fedswitch', 'k_s': 0, 'data__client_labels': 9}, 'fedswitch learns from labels at the server'),
        ({'algorithm': 'fedavg', 'data__client_labels': 4000}, 'use fewer (or k_s=0'),
        ({'data__client_labels': -1}, 'clients of semisfl also train on unlabeled images'),
        (
            {'algorithm': 'fedavg', 'sampling': 'replicated', 'local__epochs': 2},
            "sampling='replicated' repeats a client's images to fill k_u iterations",
        ),
        ({'algorithm': 'fedavg', 'uda__temperature': 0.4}, "needs local.objective='uda', not 'fixmatch'"),
        ({'algorithm': 'fedmatch', 'fedmatch__helpers': 30}, 'helpers=30 is more than the number of other clients'),
        (
            {'algorithm': 'semifl', 'local__epochs': 2, 'semifl__max_passes': 3},
            'semifl.max_passes=3 has no effect: local.epochs=2',
        ),
        ({'algorithm': 'semifl', 'data__client_labels': 100}, 'client_labels=100: clients of semifl have no labels'),
        ({'algorithm': 'semifl', 'data__residency': 'host'}, "batch_norm_data='all' needs the images of all clients"),
        (UDA | {'uda__tsa': 'log'}, "uda.tsa='log' anneals labels at the clients, but they have none"),
        ({'optimizer': 'adam'}, "nesterov=True belongs to optimizer='sgd'"),
        ({'algorithm': 'supervised_only', 'parallel__devices': 2}, 'supervised_only has no clients to distribute'),
        ({'seeds': (0, 1, 2, 3, 4, 5), 'parallel__devices': 4}, 'devices=4 does not divide the 6 trials'),
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
    if choices := choices_of(keys.fields()[key]):
        resolved = hparams_lib.shared_defaults().get(key)  # of 'auto'
        return next(choice for choice in choices if choice not in (value, resolved))
    if isinstance(value, bool):
        return not value
    if isinstance(value, str | list):
        return 'encoder.npz' if isinstance(value, str) else ('semseg',)
    return (value / 2 or 0.5) if isinstance(value, float) else (value or 0) + 1


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_every_option_that_a_method_has_no_use_for_ends_in_one_line(algorithm):
    base = needs.changes(algorithm)
    for key in checks.unused(algorithms.get(algorithm)):
        config = default.get_config()
        config.update_from_flattened_dict(base | {key: valid_other(key)})
        with pytest.raises(
            UserError, match=re.escape(f'config.{key}={config_lib.flatten(config)[key]} is no')
        ) as error:
            config_lib.check(config)
        assert algorithm in str(error.value)
        assert '\n' not in str(error.value)


def test_options_of_methods_belong_to_some_methods_alone():
    groups = hparams_lib.GROUPS.keys() | registry.option_groups().keys()
    options = {key for key in config_lib.flatten(default.get_config()) if key.split('.')[0] in groups}
    for key in options - {'semifl.batch_norm_data'}:  # which goes with where a configuration keeps its images
        refused = {name for name, method in algorithms.METHODS.items() if key in checks.unused(method)}
        assert set() < refused < set(algorithms.METHODS), f'{key} is refused by {refused or "no method"}'


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_no_label_to_learn_from_ends_in_one_line(algorithm):
    for labels in ({'data.client_labels': 0}, {'data.client_labels': 100, 'federation.mu': 0}):
        config = default.get_config()
        config.update_from_flattened_dict(needs.changes(algorithm) | {'k_s': 0} | labels)
        with pytest.raises(UserError, match='label') as error:
            config_lib.check(config)
        assert '\n' not in str(error.value)


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
