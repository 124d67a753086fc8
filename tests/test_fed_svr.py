"""Fed-SVR: its rounds stand in tests/test_fed_shvr.py; here what it moves."""

from tests.rows import STUDENT, Row

ROW = Row(f'{STUDENT} clients server', f'{STUDENT} clients server', by_images=True)
