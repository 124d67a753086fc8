"""Shapes of the arguments of a round and an evaluation are those of the arrays of a run."""

import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import shapes
from semisfl_jax.training.driver import Driver, init_state
from semisfl_jax.training.evaluation import batched
from tests.helpers import needs, runs
from tests.helpers.marks import slow_but

ONE = jax.devices('cpu')[0]


def described(tree):
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda tree: tree, tree))
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


OBJECTS = {'data.name': 'digit_scenes', 'data.tasks': ('panoptic', 'persons'), 'augment.crop': 0.0}
SETTINGS = {
    'semisfl': {},
    'on the host': {'data.residency': 'host'},
    'whole sets on the host': {'data.residency': 'host', **needs.changes('semifl')},
    'labels at the clients': {'data.residency': 'host', 'data.client_labels': 20},
    'supervised_only': {'algorithm': 'supervised_only'},
    'dense tasks': needs.changes('m_fed'),
    'tasks of objects': {**needs.changes('m_fed'), **OBJECTS},
    'dense tasks on the host': {'data.residency': 'host', **needs.changes('m_fed')},
}


@pytest.mark.parametrize('name', slow_but(SETTINGS, 'semisfl', 'labels at the clients'))
def test_shapes_are_those_of_a_run(name):
    config = runs.config()
    config.update_from_flattened_dict(SETTINGS[name])
    config = sfl.resolve(config)
    real, hollow = experiment_lib.build(config), shapes.build(config, None)
    state = init_state(real)(real.key)
    federation, cohort, _ = next(Driver([real]).inputs(0))
    arguments = shapes.round_arguments(hollow, ONE)
    assert described(tuple(arguments)) == described((real.key, state, federation, cohort, np.int32(1)))
    assert all(leaf.sharding.device_set == {ONE} for leaf in jax.tree.leaves(arguments))
    batches = batched(real.dataset.test_images, real.test_truth, config.eval_batch_size, jax.device_put)
    assert described(shapes.evaluation_arguments(hollow, ONE)) == described((state, batches))
