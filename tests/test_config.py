"""Configurations: what is accepted, what is refused, and what makes two of them one experiment."""

import pytest
from ml_collections import ConfigDict

from configs import default
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.config import checks
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams
from tests import needs, rows
from tests.settings import NAMES, SUPERVISED, changed, get

# Data set, model, labels: Section V of the paper. B, B_s, supervised-only rounds: the authors' code.
PAPER = {
    'cifar10': ('cifar10', 'alexnet', 4000, 64, 64, 0),
    'svhn': ('svhn_cropped', 'cnn', 1000, 64, 64, 0),
    'stl10': ('stl10', 'vgg13', 5000, 32, 64, 0),
    'image100': ('image100', 'vgg16', 5000, 64, 128, 20),
}


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
    foreign = {key for key in default.CODE if key in checks.unused(algorithms.get(algorithm))}
    if not foreign:
        config_lib.check(config_lib.resolve(config))
        return
    with pytest.raises(UserError, match=f'is not an option of {algorithm}') as error:
        config_lib.check(config_lib.resolve(config))
    assert any(key in str(error.value) for key in foreign)


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


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_what_auto_means_for_a_method(algorithm):
    """K_s adapts in SemiSFL alone. SemiFL's authors keep their momentum, and clients that train alone have no rounds.
    Clients count by their images where the method's paper says so, which stands in the method's tests."""
    meant = {
        'k_s_rule': ('paper' if algorithm == 'semisfl' else 'fixed', 'code'),
        'local.optimizer_state': ('kept' if algorithm in ('semifl', 'mfed_local') else 'fresh', 'fresh'),
        'local.weighting': ('samples' if rows.rows()[algorithm].by_images else 'uniform', 'uniform'),
    }
    config = default.get_config()
    config.update_from_flattened_dict(needs.changes(algorithm))
    resolved = config_lib.resolve(config)
    config_lib.check(resolved)
    refused = checks.unused(algorithms.get(algorithm))
    for key, (auto, other_value) in meant.items():
        assert config_lib.flatten(resolved)[key] == auto
        if key not in refused:
            config.update_from_flattened_dict({key: other_value})
            assert config_lib.flatten(config_lib.resolve(config))[key] == other_value


def test_the_hyper_parameters_are_those_of_the_configuration():
    """Defaults that the check compares with stand in HParams; a configuration must begin with the same."""
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


KEYS_OF_NO_NUMBER = {
    *('rounds', 'checkpoint_every', 'checkpoints_kept', 'diagnostics_every', 'compilation_cache', 'official_keys'),
    *('data.data_dir', 'data.cache_dir', 'data.residency'),
    *('parallel.coordinator', 'parallel.num_processes', 'parallel.process_id'),
}


@pytest.mark.parametrize('key', config_lib.flatten(default.get_config()))
def test_a_key_changes_the_identity_if_it_changes_the_numbers(key):
    config = default.get_config()
    twin = changed(**{key: other(config_lib.flatten(config)[key])})
    inert = key in KEYS_OF_NO_NUMBER
    assert (config_lib.identity_hash(config) == config_lib.identity_hash(twin)) == inert
    differences = config_lib.differences(twin, config.to_dict())
    assert [line.split(':')[0] for line in differences] == ([] if inert else [key])


def test_differences_show_both_values_and_missing_keys():
    old = default.get_config().to_dict()
    del old['k_u']
    assert config_lib.differences(changed(lr=0.5), old) == ['k_u: (absent) -> 50', 'lr: 0.02 -> 0.5']


def test_the_default_folder_depends_on_the_resolved_configuration():
    def folder(**changes):
        return config_lib.default_workdir(config_lib.resolve(changed(**changes)), 'digits')

    plain = folder(rounds=70, lr_rounds=70)
    assert plain.startswith('runs/digits-')
    assert len(plain) == len('runs/digits-') + 8
    assert plain == folder(rounds=70, lr_rounds=0) == folder(rounds=99, lr_rounds=70)
    assert plain != folder(rounds=99, lr_rounds=0)


def test_flatten():
    nested = ConfigDict({'a': 1, 'b': {'c': 'x', 'd': {'e': None}}})
    assert config_lib.flatten(nested) == {'a': 1, 'b.c': 'x', 'b.d.e': None}
