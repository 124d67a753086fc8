"""Models of the paper and of tests, and what a round on them costs."""

import dataclasses
import types

import numpy as np

from configs import cifar10, image100, stl10, svhn
from semisfl_jax import algorithms, costs, data
from semisfl_jax import config as config_lib
from semisfl_jax.config import failures, get_config
from semisfl_jax.costs import CostContext, price_round
from semisfl_jax.costs.prices import ModelSpec, measure
from semisfl_jax.costs.rounds import no_failures
from tests.helpers import runs

CONFIGS = {'svhn': svhn, 'cifar10': cifar10, 'stl10': stl10, 'image100': image100}
# Of `small`
RESNET9 = 4 * (6_575_370 - 2 * 9 * 64)  # bytes of parameters, with one channel in place of three
STATISTICS = 4 * 2 * (64 + 128 + 2 * 128 + 256 + 512 + 2 * 512)


def model_of(config, **options):
    """The cost model of a configuration."""
    config_lib.check(config)
    config = config_lib.resolve(config)
    shape, classes = data.outline(config.data)[:2]
    built = costs.build(config, algorithms.get(config.algorithm), classes, shape, config_lib.hparams(config))
    return dataclasses.replace(built, options=dataclasses.replace(built.options, **options))


def paper_model(name, algorithm='semisfl', **changes):
    config = CONFIGS[name].get_config()
    config.algorithm = algorithm
    config.update_from_flattened_dict(changes)
    return model_of(config)


def price(name, context):
    return algorithms.get(name).price(context)


def everybody(model, ids=None):
    ids = np.arange(model.num_active) if ids is None else np.asarray(ids)
    return no_failures(ids, np.full(ids.shape, 9), np.full(ids.shape, model.hparams.k_u), np.zeros(ids.shape, bool))


def small(**options):
    """What prices depend on, of a small model with settings of a method that are not those of SemiSFL."""
    pieces = measure(ModelSpec('resnet9', 10, (8, 8, 1), None, 'none', 128))
    groups = {name: types.SimpleNamespace(**values) for name, values in options.items() if isinstance(values, dict)}
    h = types.SimpleNamespace(**{'batch_size': 16, 'labeled_rows': 0, **options, **groups})
    return CostContext(pieces, pieces.whole_bytes, h, 10, images=np.full(10, 9), steps=np.full(10, 7), survivors=10)


def digits(**changes):
    return model_of(runs.config(k_u=7, federation__num_active=5, **changes))


def shvr_model(algorithm, **changes):
    """The cost model of Fed-SHVR's experiment on MNIST."""
    changes = {'setting': 'official', 'model.name': 'mlp5000', 'data.num_labeled': 600, **changes}
    config = config_lib.resolve(get_config('mnist', {'algorithm': algorithm, **changes}))
    shape, classes = data.outline(config.data)[:2]
    method, may_fail = algorithms.get(algorithm), failures.can_happen(config.failures)
    return costs.build(config, method, classes, shape, config_lib.hparams(config), may_fail)


def bill(model, ids):
    count = np.full(len(ids), 9)
    return price_round(model, 0, 0, no_failures(np.array(ids), count, count, count > 0))
