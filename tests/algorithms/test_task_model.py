"""The models of several dense tasks as one, and each of them again."""

import types

import jax
import numpy as np

from semisfl_jax.algorithms.task_model import TaskModel, init_models, join, part
from semisfl_jax.core import rng
from semisfl_jax.core.types import SplitParams


def drawn(key):
    weights, means = jax.random.normal(key, (2, 3))
    return {'params': {'w': weights}, 'batch_stats': {'mean': means}}


def start(*names):
    model = types.SimpleNamespace(init=lambda key: SplitParams(drawn(key), drawn(rng.fold(key, 'top')), {'params': {}}))
    return init_models(rng.root(3), [TaskModel(types.SimpleNamespace(name=name), model) for name in names])


def test_tasks_begin_with_one_encoder_and_a_decoder_each_whatever_the_other_tasks_are():
    models, alone = start('semseg', 'depth'), start('depth')
    jax.tree.map(np.testing.assert_array_equal, models['semseg'].bottom, models['depth'].bottom)
    jax.tree.map(np.testing.assert_array_equal, models['depth'], alone['depth'])
    tops = (models[name].top['params']['w'] for name in ('semseg', 'depth'))
    assert not np.array_equal(*tops)


def test_a_part_of_what_was_joined_is_the_model_of_the_task():
    models = start('semseg', 'depth')
    joined = join(models)
    assert joined.bottom.keys() == {'params', 'batch_stats'}
    for name, model in models.items():
        jax.tree.map(np.testing.assert_array_equal, part(joined, name), model)
