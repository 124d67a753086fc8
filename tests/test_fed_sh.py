"""Fed-SH: its rounds stand in tests/test_fed_shvr.py; here what it moves."""

from tests.rows import STUDENT, Row

ROW = Row(STUDENT, STUDENT, by_images=True)
