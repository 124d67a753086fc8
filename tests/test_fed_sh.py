"""Fed-SH: rounds and fixed points stand in tests/test_fed_shvr.py; here what it moves and keeps."""

import jax

from semisfl_jax import algorithms
from semisfl_jax.core import rng
from tests import linear, toy
from tests.rows import STUDENT, Row
from tests.shvr_hparams import hparams

ROW = Row(STUDENT, STUDENT, by_images=True)


def test_it_keeps_nothing_at_clients():
    state = jax.eval_shape(algorithms.build('fed_sh', linear.model(), toy.VIEWS, hparams()).init, rng.root(0))
    assert state.clients == state.server == ()
