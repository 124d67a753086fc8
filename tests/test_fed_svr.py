"""Fed-SVR: rounds and fixed points stand in tests/test_fed_shvr.py; here what it moves and keeps."""

import jax

from semisfl_jax import algorithms
from semisfl_jax.core import rng
from tests import linear, toy
from tests.rows import STUDENT, Row
from tests.shvr_hparams import hparams

ROW = Row(f'{STUDENT} clients server', f'{STUDENT} clients server', by_images=True)


def test_it_keeps_one_gradient_per_client_and_their_sum():
    h = hparams(num_clients=7)
    state = jax.eval_shape(algorithms.build('fed_svr', linear.model(), toy.VIEWS, h).init, rng.root(0))
    parameters = [leaf.shape for piece in state.student for leaf in jax.tree.leaves(piece['params'])]
    assert [leaf.shape for leaf in jax.tree.leaves(state.clients)] == [(7, *shape) for shape in parameters]
    assert [leaf.shape for leaf in jax.tree.leaves(state.server)] == parameters
