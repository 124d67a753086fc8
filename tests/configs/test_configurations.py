"""The configurations of configs/: valid, with the values of the papers."""

import pytest

from configs import default
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from tests.helpers import needs
from tests.helpers.settings import NAMES, get

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
    """With no more keys than tests/helpers/needs.py has."""
    config = get(name)
    config.update_from_flattened_dict(needs.changes(algorithm))
    config_lib.check(config_lib.resolve(config))


@pytest.mark.parametrize('name', PAPER)
def test_configurations_have_the_numbers_of_the_paper(name):
    config = get(name)
    data_and_model = config.data.name, config.model.name, config.data.num_labeled
    assert (*data_and_model, config.batch_size, config.server_batch_size, config.pre_rounds) == PAPER[name]
    assert (config.rounds, config.k_s, config.k_u) == (1000, 100, 50)
    assert (config.federation.num_clients, config.federation.num_active) == (30, 10)
    assert (config.lr, config.lr_min, config.momentum, config.weight_decay) == (0.02, 0.005, 0.9, 5e-4)
    assert config.augment.supervised == ('weak' if name == 'svhn' else 'strong')
