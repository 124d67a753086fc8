"""The hyperparameters of Fed-SHVR and its ablations for the toy clients."""

import dataclasses

from semisfl_jax.algorithms.fed_shvr import FedShvr
from semisfl_jax.core.hparams import Local
from tests import toy


def hparams(**changes):
    settings = {
        'labeled_rows': 1,
        'server_trains': False,
        'num_clients': 5,
        'momentum': 0.0,
        'nesterov': False,
        'weight_decay': 0.0,
        'lr_min': 0.02,
        'local': Local(epochs=1, steps='longest', weighting='samples'),
        'options': FedShvr(alpha0=0.9, alpha1=0.6, alpha2=0.2, ramp_rounds=0),
    }
    return dataclasses.replace(toy.HPARAMS, **settings | changes)
