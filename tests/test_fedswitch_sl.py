"""FedSwitch-SL in tests/test_matrix.py. Its rounds are held against NumPy in tests/test_phases.py."""

from tests.rows import STUDENT, TEACHER, Row

ROW = Row(f'{STUDENT} {TEACHER}', STUDENT)
