"""FedSwitch-SL: rounds against NumPy."""

import pytest

from semisfl_jax.algorithms.fedswitch import FedSwitch
from tests.helpers import numpy_rounds
from tests.helpers.marks import slow_but
from tests.helpers.rows import STUDENT, TEACHER, Row

ROWS = {'fedswitch_sl': Row(f'{STUDENT} {TEACHER}', STUDENT)}
CASES = {
    'the switch': ('fedswitch_sl', {'options': FedSwitch('switch', 0.6), 'queue': 'off', 'threshold': 0.5}),
    'the student labels': ('fedswitch_sl', {'options': FedSwitch('student'), 'queue': 'off', 'threshold': 0.9}),
    'the teacher labels': ('fedswitch_sl', {'options': FedSwitch('teacher'), 'queue': 'off', 'labeled_rows': 1}),
}


@pytest.mark.parametrize('case', slow_but(CASES, 'the switch'))
def test_rounds_equal_the_ones_in_numpy(case):
    numpy_rounds.check_split(*CASES[case])
