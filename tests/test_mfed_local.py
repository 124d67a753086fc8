"""Local training, the baseline of M-Fed: rounds stand in tests/test_m_fed.py; here what it moves."""

from tests.rows import Row

ROW = Row('clients', 'clients', by_images=True, family='scene_net')
