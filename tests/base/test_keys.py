"""What a key may be, in words and as a check."""

import math

import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.base.keys import check_value, key, range_of

HALF_OPEN = {'at_least': 0, 'below': 1}


@pytest.mark.parametrize(
    ('bounds', 'words', 'right', 'wrong'),
    [
        ({}, '', 1e30, math.inf),
        ({'at_least': 0}, '0 or more', 0, -1),
        ({'at_least': 2}, 'at least 2', 2, 1),
        ({'above': 0.0}, 'above 0', 1e-9, 0),
        ({'at_most': 3}, 'at most 3', 3, 4),
        ({'below': 3}, 'below 3', 2.9, 3),
        (HALF_OPEN, 'in [0, 1)', 0.0, 1.0),
        ({'above': 0.0, 'at_most': 1}, 'in (0, 1]', 1, math.nan),
    ],
)
def test_a_number_is_checked_against_the_range_that_the_message_names(bounds, words, right, wrong):
    field = key(0.5, **bounds)
    assert range_of(field) == words
    check_value('group.name', field, right)
    with pytest.raises(UserError, match=r'^config\.group\.name=') as error:
        check_value('group.name', field, wrong)
    assert f'must be {words or "a finite number"}' in str(error.value)
    check_value('group.name', field, True)  # no number


def test_a_name_is_one_of_the_choices_also_of_those_that_a_user_registers():
    names = {'mean': None, 'median': None}
    field = key('mean', choices=names)
    names['mine'] = None
    check_value('name', field, 'mine')
    with pytest.raises(UserError, match=r"'medium' is unknown; use one of mean, median, mine.*'median'.*registers it"):
        check_value('name', field, 'medium')
    with pytest.raises(UserError, match=r'use one of a, b$'):
        check_value('name', key('a', choices=('a', 'b')), 'c')
