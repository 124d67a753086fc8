"""Federated learning per task, the baseline of M-Fed: rounds stand in tests/test_m_fed.py; here what it moves."""

from tests.rows import STUDENT, Row

ROW = Row(STUDENT, STUDENT, by_images=True, family='scene_net')
