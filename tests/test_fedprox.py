"""FedProx: its rounds are held against NumPy in tests/test_phases.py."""

from tests.rows import STUDENT, Row

ROW = Row(STUDENT, STUDENT, by_images=True, keys=(('local.prox', 5.0),))
