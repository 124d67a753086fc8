"""Federated learning per task, the baseline of M-Fed: rounds stand in tests/test_m_fed.py; here what it moves."""

from tests.rows import Row

ENCODERS = 'student.bottom student.top student.statistics'
ROW = Row(ENCODERS, ENCODERS, by_images=True, family='scene_net')
