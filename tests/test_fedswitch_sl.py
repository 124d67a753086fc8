"""FedSwitch-SL's keys. Its rounds are held against NumPy in tests/test_phases.py."""

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.core.errors import UserError
from tests import runs
from tests.rows import STUDENT, TEACHER, Row

ROW = Row(f'{STUDENT} {TEACHER}', STUDENT)


@pytest.mark.parametrize(
    ('changes', 'named'),
    [({'client_teacher_ema': True}, "fedswitch.mode='student'"), ({'setting': 'official'}, "setting='official'")],
)
def test_what_cannot_be_is_refused(changes, named):
    given = {'algorithm': 'fedswitch_sl', 'fedswitch__mode': 'student'}
    config_lib.check(runs.config(**given))
    with pytest.raises(UserError, match=named):
        config_lib.check(runs.config(**given, **changes))
