"""What Fed-SHVR and its ablations send and compute, worked out by hand."""

import dataclasses

import numpy as np
import pytest

from semisfl_jax import algorithms, costs, data
from semisfl_jax import config as config_lib
from semisfl_jax.config import failures, get_config
from semisfl_jax.costs.rounds import no_failures

MODEL = 4 * 3_975_010  # bytes of the MLP with 5,000 units: 784 * 5000 + 5000 + 5000 * 10 + 10 parameters


def model_of(algorithm, **changes):
    """The cost model of Fed-SHVR's experiment on MNIST."""
    changes = {'setting': 'official', 'model.name': 'mlp5000', 'data.num_labeled': 600, **changes}
    config = config_lib.resolve(get_config('mnist', {'algorithm': algorithm, **changes}))
    shape, classes = data.shape(config.data)
    method, may_fail = algorithms.get(algorithm), failures.can_happen(config.failures)
    return costs.build(config, method, classes, shape, config_lib.hparams(config), may_fail)


def bill(model, active=10):
    clients = np.arange(active)
    steps = np.full(active, 371)
    return costs.price_round(model, 0, 0, no_failures(clients, np.full(active, 6_000), steps, steps > 0))


@pytest.mark.parametrize(
    ('algorithm', 'changes', 'down'),
    [
        ('fed_shvr', {}, 1),
        ('fed_svr', {}, 1),
        ('fed_sh', {}, 1),
        ('fed_shvr', {'federation.num_active': 5}, 2),
        ('fed_svr', {'failures.inside': 0.1}, 2),
        ('fed_shvr', {'k_s': 5}, 2),
        ('fed_sh', {'k_s': 5}, 1),
        ('fed_sh', {'federation.num_active': 5}, 1),
    ],
)
def test_bytes(algorithm, changes, down):
    """15.16 MiB down and up for each client; the average gradient travels, too, where clients may be
    absent, or where the server trains between two of the models that they receive."""
    active = changes.get('federation.num_active', 10)
    found = bill(model_of(algorithm, **changes), active)
    assert (found.bytes_down, found.bytes_up) == (down * active * MODEL, active * MODEL)
    assert round(MODEL / 2**20, 2) == 15.16


def test_statistics_are_not_corrected():
    """Of CNN13, the average gradient has no part for BatchNorm's running statistics: 2 (3 x 128 + 3 x 256 + 512 + 256 +
    128) numbers."""
    changes = {'data.name': 'cifar10', 'federation.num_active': 5, 'federation.num_clients': 10}
    model = model_of('fed_shvr', **changes, **{'model.name': 'cnn13'})
    statistics, parameters = 4 * 2 * (3 * 128 + 3 * 256 + 512 + 256 + 128), 4 * 3_123_850
    assert bill(model, 5).bytes_down == 5 * (2 * parameters + statistics)


def test_images_are_labeled_once_a_round():
    """Two operations for each of 3,970,000 weights, and one for each number that comes out, 6,000 times; a step is
    three such products for 64 images, less the gradient of the images."""
    model = model_of('fed_shvr')
    context = costs.CostContext(
        model.pieces, model.whole_bytes, model.hparams, 10, unlabeled=6_000, steps=371, everyone=True, labels=True
    )
    cost = algorithms.get('fed_shvr').price(context)
    products = 2 * (784 * 5000 + 5000 * 10)
    assert 1.0 < cost.setup_work / (6_000 * products) < 1.01
    assert 1.0 < cost.step_work / (64 * (3 * products - 2 * 784 * 5000)) < 1.02


def test_pseudo_labels_of_the_received_model_are_made_once_too():
    semi = dataclasses.replace(model_of('fedavg', **{'local.objective': 'pseudo_label'}))
    context = costs.CostContext(semi.pieces, semi.whole_bytes, semi.hparams, 10, unlabeled=500, steps=7, labels=True)
    cost = algorithms.get('fedavg').price(context)
    assert cost.setup_work == 500 * semi.pieces.whole_work.forward
    assert cost.step_work == semi.hparams.batch_size * semi.pieces.whole_work.train
    without = algorithms.get('fedavg').price(context._replace(labels=False))  # 32 of 64 rows stand empty
    assert without.step_work == 32 * semi.pieces.whole_work.train
