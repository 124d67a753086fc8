"""Misspelt names and keys: refused, with the name that was probably meant."""

import pytest
from ml_collections import ConfigDict

import launch
from configs import default
from configs.studies import scales
from semisfl_jax import config as config_lib
from semisfl_jax import data, models
from semisfl_jax.config import keys
from semisfl_jax.core.errors import UserError, did_you_mean
from semisfl_jax.training import loop
from tests import runs
from tests.one_line import assert_one_line
from tests.settings import changed

# What is added to the command line of a tiny digits run -> what was meant.
MISSPELT = {
    '--config.algorithm=FedAvg': "did you mean 'fedavg'?",
    '--config.model.name=smal_cnn': "did you mean 'small_cnn'?",
    '--config.data.name=digitz': "did you mean 'digits'?",
    '--config.cost.devices=jetson_nan': "did you mean 'jetson_nano'?",
    '--config.batchsize=4': 'did you mean config.batch_size?',
    '--config.model.projection_dims=4': 'did you mean config.model.projection_dim?',
    f'{runs.DIGITS}:papre': "did you mean 'paper'?",
    '--config=configs/digit.py': 'did you mean digits?',
    '--config=configs/digit.py:code': 'did you mean digits?',
    '--config=table4': 'did you mean studies/table4?',
    '--config=configs/studies/tabel4.py:cpu': 'did you mean studies/table4?',
    f'--config={runs.ROOT}/configs/studies/table4.py:smoek': "did you mean 'smoke'?",
}


@pytest.mark.parametrize('word', MISSPELT)
def test_what_was_meant_is_named(word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(runs.ROOT)
    assert launch.main(['launch.py', *runs.words(tmp_path / 'run'), word]) == 2
    assert_one_line(capsys.readouterr().err, [MISSPELT[word]])
    assert not (tmp_path / 'run').exists()


def test_a_key_of_a_cell_of_a_study():
    with pytest.raises(UserError, match=r'none / uniform: config\.queu is not a key; did you mean config\.queue\?'):
        scales.cell('smoke', 'none', 'uniform', 'cifar10', {'queu': 'off'})


def test_nothing_is_suggested_where_nothing_is_near():
    assert did_you_mean('fedavg', ('two_level', 'off')) == ''
    with pytest.raises(UserError, match=r'is unknown; use one of .*fedavg, ') as error:
        config_lib.check(changed(algorithm='zzz'))
    assert 'did you mean' not in str(error.value)


@pytest.mark.parametrize(
    ('call', 'meant'),
    [
        (lambda: scales.check('fulll'), "'full'"),
        (lambda: models.build('alexnt', 10, (32, 32, 3)), "'alexnet'"),
        (lambda: data.load(changed(data__name='cifar1O', data__fake=True).data), "'cifar10'"),
    ],
)
def test_a_misspelt_name_in_a_program(call, meant):
    with pytest.raises(UserError, match=f'did you mean {meant}'):
        call()


@pytest.mark.parametrize(
    ('key', 'meant'),
    [
        ('algoritm', 'algorithm'),
        ('federation.num_client', 'federation.num_clients'),
        ('num_clients', 'federation.num_clients'),
        ('fedswich.mode', 'fedswitch.mode'),
        ('learning_rate', 'lr'),
        ('data.lr', 'lr'),
        ('alpha', 'federation.alpha'),
        ('clients', 'federation.num_clients'),
        ('train.epochs', 'local.epochs'),
    ],
)
def test_a_misspelt_key_of_a_program_ends_in_one_line(key, meant, tmp_path):
    config = runs.config()
    with config.unlocked():
        group, _, name = key.rpartition('.')
        if group and group not in config:
            config[group] = ConfigDict()
        (config[group] if group else config)[name] = 'fedavg'
    with pytest.raises(UserError) as error:
        loop.train(config, tmp_path / 'run')
    assert f'config.{key} is not a key; did you mean config.{meant}?' in str(error.value)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('key', ['name', 'rate', 'xyz', 'model.width', 'devices_per_client'])
def test_no_key_is_suggested_where_it_is_not_clear(key):
    assert keys.meant(key, keys.fields()) == ''


def test_a_key_that_is_missing_ends_in_one_line():
    config = default.get_config()
    del config.k_u
    with pytest.raises(UserError, match=r'config\.k_u is missing'):
        config_lib.check(config)
