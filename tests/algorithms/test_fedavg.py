"""FedAvg and FedProx: rounds against NumPy."""

import chex
import jax
import jax.numpy as jnp
import pytest

from semisfl_jax import algorithms, costs
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import Local, Uda
from tests.helpers import numpy_rounds
from tests.helpers.prices import shvr_model
from tests.helpers.rows import STUDENT, Row

ROWS = {
    'fedavg': Row(STUDENT, STUDENT, by_images=True),
    'fedprox': Row(STUDENT, STUDENT, by_images=True, keys=(('local.prox', 5.0),)),
}
CASES = {
    'fixmatch, by images, keeps momentum': (
        'fedavg',
        {
            'local': Local(epochs=1, weighting='samples', optimizer_state='kept'),
            'consistency_weight': 0.3,
            'labeled_rows': 1,
            'server_trains': False,
        },
    ),
    'uda with annealed labels, after the server': (
        'fedprox',
        {
            'local': Local(objective='uda', prox=5.0),
            'uda': Uda(temperature=0.4, tsa='linear'),
            'labeled_rows': 2,
            'pre_rounds': 1,
        },
    ),
    'labels of the received model': (
        'fedavg',
        {'local': Local('pseudo_label', epochs=1, ramp_rounds=3), 'labeled_rows': 1, 'consistency_weight': 0.7},
    ),
    'mean teachers': (
        'fedavg',
        {
            'local': Local('mean_teacher', teacher_decay=0.6, input_noise=0.5, ramp_rounds=2),
            'labeled_rows': 2,
            'consistency_weight': 3.0,
        },
    ),
    'labels alone': ('fedavg', {'local': Local('supervised'), 'labeled_rows': 4, 'server_trains': False}),
}


@pytest.mark.parametrize('case', CASES)
def test_rounds_equal_the_ones_in_numpy(case):
    numpy_rounds.check_whole(*CASES[case], rates_vary=case != 'mean teachers')


@pytest.mark.slow
def test_fedprox_without_a_weight_is_fedavg_bit_for_bit():
    after = []
    for name in ('fedavg', 'fedprox'):
        algorithm, _, state = numpy_rounds.start(name, {'local': Local(prox=0.0)})
        cohort = numpy_rounds.cohort([4, 0, 2], [0, 0, 0])
        after += jax.jit(algorithm.round)(rng.root(0), state, numpy_rounds.federation(), cohort, jnp.int32(2))[:1]
    chex.assert_trees_all_equal(*after)


def test_pseudo_labels_of_the_received_model_are_made_once_too():
    semi = shvr_model('fedavg', **{'local.objective': 'pseudo_label'})
    context = costs.CostContext(semi.pieces, semi.whole_bytes, semi.hparams, 10, unlabeled=500, steps=7, labels=True)
    cost = algorithms.get('fedavg').price(context)
    assert cost.setup_work == 500 * semi.pieces.whole_work.forward
    assert cost.step_work == semi.hparams.batch_size * semi.pieces.whole_work.train
    without = algorithms.get('fedavg').price(context._replace(labels=False))  # 32 of 64 rows stand empty
    assert without.step_work == 32 * semi.pieces.whole_work.train
