"""What 'auto' becomes, the folder of an experiment, and what makes two configurations one experiment."""

import dataclasses
import json

import pytest

from configs import default
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import option
from tests.helpers import needs, rows
from tests.helpers.settings import changed, get

KEYS_OF_NO_NUMBER = """
rounds checkpoint_every checkpoints_kept diagnostics_every compilation_cache official_keys data.data_dir data.cache_dir
data.residency parallel.coordinator parallel.num_processes parallel.process_id trackers
"""
# A run may go on with other values of these: what lies there has checksums of its own
KEYS_OF_PLACES = """
data.image_folder data.class_list data.partition_file model.weights failures.trace parallel.devices
"""
# Runs of users are found again by these numbers: who changes them loses all that were begun before
IDENTITIES = 'digits paper semisfl 16e698cd, cifar10 code semisfl df16983b, fashion_mnist paper fed_shvr 94ec45a7'


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


def test_classification_from_a_file_of_weights_is_normalized_as_imagenet_unless_told_otherwise():
    for changes, expected in (
        ({}, 'auto'),
        ({'model__weights': '/a.pth'}, 'imagenet'),
        ({'model__weights': '/a.pth', 'data__normalization': 'data'}, 'data'),
        ({'model__weights': '/a.pth', 'data__tasks': ('semseg',)}, 'auto'),  # photographs of dense tasks always are
    ):
        assert config_lib.resolve(changed(**changes)).data.normalization == expected


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


@pytest.mark.parametrize('key', config_lib.flatten(default.get_config()))
def test_a_key_changes_the_identity_if_it_changes_the_numbers(key):
    config = default.get_config()
    twin = changed(**{key: other(config_lib.flatten(config)[key])})
    inert = key in KEYS_OF_NO_NUMBER.split()
    assert (config_lib.identity_hash(config) == config_lib.identity_hash(twin)) == inert
    old = config.to_dict()
    differences = config_lib.differences(twin, old)
    assert [line.split(':')[0] for line in differences] == ([] if inert or key in KEYS_OF_PLACES.split() else [key])
    del old['queue_size']
    assert config_lib.differences(changed(lr=0.5), old) == ['lr: 0.02 -> 0.5', 'queue_size: (absent) -> 1024']


def test_a_key_that_came_later_counts_where_it_is_not_at_its_default(monkeypatch):
    """Runs from before it did what its default says; here an option of a method, (1, 2) or [1, 2] in a file."""
    options = dataclasses.make_dataclass('Options', [('late', tuple, option((1, 2), added=True))], frozen=True)
    mine = dataclasses.replace(algorithms.METHODS['fedavg'], name='mine', options=options)
    monkeypatch.setitem(algorithms.METHODS, 'mine', mine)
    config = changed(algorithm='mine')
    old = json.loads(config.to_json())
    assert old['mine'].pop('late') == [1, 2]
    assert config_lib.identity_hash(old) == config_lib.identity_hash(config)
    assert config_lib.differences(config, old) == []
    config.mine.late = (1, 3)
    assert config_lib.identity_hash(old) != config_lib.identity_hash(config)
    assert config_lib.differences(config, old) == ['mine.late: [1, 2] -> [1, 3]']


@pytest.mark.parametrize('words', IDENTITIES.split(', '))
def test_known_configurations_keep_their_identity(words):
    name, settings, algorithm, identity = words.split()
    config = get(name, settings)
    config.algorithm = algorithm
    assert config_lib.identity_hash(config_lib.resolve(config)).startswith(identity)
