"""The tables of keys fit together: features, 'auto', and groups that methods may take."""

import dataclasses

import pytest

from semisfl_jax import algorithms
from semisfl_jax.algorithms.method import FEATURES
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import keys, schema
from semisfl_jax.core.hparams import HParams


def test_every_feature_of_a_key_is_one_that_a_method_may_have():
    assert {field.metadata['feature'] for field in schema.KEYS.values()} == {'', *FEATURES}


def test_a_configuration_leaves_to_the_method_what_a_round_must_know():
    """The other defaults of a round are those of HParams."""
    auto = {key for key, field in schema.KEYS.items() if field.default == 'auto'}
    assert auto > {'local.steps', 'local.weighting', 'local.optimizer_state', 'k_s_rule'}
    assert 'auto' not in dataclasses.astuple(HParams().local)
    assert schema.KEYS['local.steps'].metadata['choices'] == ('auto', 'unlabeled', 'longest')
    assert (schema.KEYS['lr'].default, HParams().lr) == (0.02, 0.02)


def test_a_group_that_every_configuration_has_is_not_a_methods(monkeypatch):
    taken = dataclasses.replace(algorithms.METHODS['fedmatch'], name='mine', group='cost')
    monkeypatch.setitem(algorithms.METHODS, 'mine', taken)
    with pytest.raises(UserError, match=r'config\.cost '):
        keys.fields()
