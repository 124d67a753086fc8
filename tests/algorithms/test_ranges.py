"""Ranges of a search in the records of methods."""

import dataclasses

import pytest

from semisfl_jax import algorithms
from semisfl_jax.algorithms.ranges import choice, linear, log
from semisfl_jax.base.errors import UserError
from semisfl_jax.core.hparams import KEYS


def test_every_method_has_ranges_around_its_defaults():
    for method in algorithms.METHODS.values():
        options = {field.name: field.default for field in dataclasses.fields(method.options)} if method.options else {}
        assert 'lr' in method.ranges
        for key, range_ in method.ranges.items():
            default = KEYS[key].default if key in KEYS else options[key.partition('.')[2]]
            assert default in range_, (method.name, key)


@pytest.mark.parametrize(
    ('key', 'range_', 'why'),
    [
        ('clustering_weight', log(0.1, 1.0), 'does not read it'),
        ('fedmatch.lambda_a', log(0.1, 1.0), 'neither an option of the method nor a shared'),
        ('lr_min', log(0.1, 1.0), 'follows lr'),
        ('lr', (0.1, 1.0), 'a tuple is no range'),
        ('k_u', linear(1, 5), 'how much work'),
        ('pseudo_labels', choice('method', 'true'), 'oracle'),
        ('semifl.global_momentum', linear(0.0, 1.0), r'\[0, 1\)'),
        ('semifl.order', choice('clients_first', 'clients'), "'clients'"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_at_registration(key, range_, why):
    method = dataclasses.replace(algorithms.METHODS['semifl'], name='mine', group='semifl', ranges={key: range_})
    with pytest.raises(ValueError, match=why):
        algorithms.register(method)
    assert 'mine' not in algorithms.METHODS
    with pytest.raises(UserError, match='no logarithm'):
        log(0.0, 0.1)
