"""Optimizers, learning rates, and what a configuration makes of hyper-parameters."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from semisfl_jax import config as config_lib
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from tests.helpers import toy
from tests.helpers.settings import changes_of, from_json


def test_adam_is_adam():
    """One step from zero moments moves each parameter by lr * sign of its gradient (L2 term included)."""
    hparams = dataclasses.replace(toy.HPARAMS, optimizer='adam', nesterov=False, weight_decay=0.1)
    sgd, w, g = optimizer(hparams, 0.01), jnp.array([1.0, -1.0, 2.0]), jnp.array([0.5, 0.2, -0.1])
    updates, _ = sgd.update(g, sgd.init(w), w)
    np.testing.assert_allclose(updates, -0.01 * np.sign([0.6, 0.1, 0.1]), rtol=1e-4)


def test_the_learning_rate_follows_its_schedule():
    hparams = HParams()
    for h in (0, 1, 500, 999, 1000, 2000):
        expected = 0.005 + 0.5 * 0.015 * (1 + np.cos(np.pi * min(h / 1000, 1)))
        np.testing.assert_allclose(learning_rate(hparams, jnp.int32(h)), expected, rtol=1e-5)
    poly = HParams(lr=1e-4, lr_min=1e-5, lr_rounds=20, lr_schedule='poly')
    for h in (0, 1, 10, 19, 20, 30):
        expected = 1e-5 + 9e-5 * (1 - min(h / 20, 1)) ** 0.9
        np.testing.assert_allclose(learning_rate(poly, jnp.int32(h)), expected, rtol=1e-5)


def test_the_hyper_parameters_are_those_of_the_configuration():
    """Defaults that the check compares with stand in HParams; a configuration must begin with the same."""

    def hparams(words):
        return config_lib.hparams(config_lib.resolve(from_json(changes_of(words))))

    assert hparams('lr_rounds=1000') == hparams_lib.HParams()
    made = hparams('algorithm=fedavg local.objective=supervised data.client_labels=-1 k_s=0 batch_size=10')
    assert (made.labeled_rows, made.server_trains, made.local.objective) == (10, False, 'supervised')
    made = hparams('algorithm=fedavg data.client_labels=100')
    assert (made.labeled_rows, made.server_trains, made.batches) == (8, True, (50, 64, 8, 0, 'unlabeled', 'epochs'))
