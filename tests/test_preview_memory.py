"""A round as the preview compiles it: shapes, memory, and what fits."""

from types import MappingProxyType

import jax
import numpy as np
import pytest

from configs import svhn
from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.core import machine
from semisfl_jax.preview import program, targets
from semisfl_jax.preview.__main__ import main
from semisfl_jax.preview.targets import Devices
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs
from semisfl_jax.training.driver import init_state
from semisfl_jax.training.evaluation import batched
from tests import needs, runs
from tests.one_line import assert_one_line

WORDS = runs.words_of('preview')
ONE = Devices(jax.devices('cpu')[0], None)


def tiny(changes=MappingProxyType({})):
    config = runs.config()
    config.update_from_flattened_dict(dict(changes))
    return config_lib.resolve(config)


@pytest.fixture(scope='module')
def compiled():
    """The tiny run on the CPU: its experiment, round and evaluation."""
    experiment = program.shape_experiment(tiny(), None)
    target = targets.get('cpu')
    return experiment, *(make(experiment, target, ONE) for make in (program.compile_round, program.compile_evaluation))


def described(tree):
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda tree: tree, tree))
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


SETTINGS = {
    'semisfl': {},
    'on the host': {'data.residency': 'host'},
    'whole sets on the host': {'data.residency': 'host', **needs.changes('semifl')},
    'labels at the clients': {'data.residency': 'host', 'data.client_labels': 20},
    'supervised_only': {'algorithm': 'supervised_only'},
    'dense tasks': needs.changes('m_fed'),
    'dense tasks on the host': {'data.residency': 'host', **needs.changes('m_fed')},
}


@pytest.mark.parametrize('name', SETTINGS)
def test_shapes_are_those_of_a_run(name):
    config = tiny(SETTINGS[name])
    real, hollow = experiment_lib.build(config), program.shape_experiment(config, None)
    state = init_state(real)(real.key)
    federation, cohort, _ = next(inputs.inputs(real, 0))
    arguments = program.round_shapes(hollow, ONE)
    assert described(tuple(arguments)) == described((real.key, state, federation, cohort, np.int32(1)))
    assert all(leaf.sharding.device_set == {ONE.first} for leaf in jax.tree.leaves(arguments))
    batches = batched(real.dataset.test_images, real.test_truth, config.eval_batch_size, jax.device_put)
    assert described(program.evaluation_shapes(hollow, ONE)) == described((state, batches))


def test_images_of_hollow_data_take_no_memory():
    config = svhn.get_config()
    hollow = data.shape_only_dataset(config.data)
    assert hollow.train_images.shape == (73_257, 32, 32, 3)
    assert hollow.test_images.shape == (26_032, 32, 32, 3)
    assert hollow.train_images.strides == (0, 0, 0, 0)
    assert set(np.unique(hollow.train_labels)) == set(range(10))
    config.data.update(name='stl10', image_size=48)
    hollow = data.shape_only_dataset(config.data)
    assert hollow.train_images.shape == (105_000, 48, 48, 3)
    assert np.sum(hollow.train_labels < 0) == 100_000


def test_memory_is_that_of_the_program_of_a_run(compiled):
    real = experiment_lib.build(tiny())
    state = init_state(real)(real.key)
    jit = experiment_lib.compile_with(real.config)
    arguments = real.key, state, *next(inputs.inputs(real, 0))[:2], np.int32(8)
    analysis = jit(real.algorithm.round, donate_argnums=1).lower(*arguments).compile().memory_analysis()
    _, round_, evaluation = compiled
    assert round_.memory.arguments == analysis.argument_size_in_bytes
    assert round_.memory.temporary == analysis.temp_size_in_bytes
    assert round_.memory.outputs == analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    assert round_.memory.outputs < 1000  # the state takes the place of its argument
    need = program.memory(compiled[0], round_, evaluation)
    images = 1437 * 8 * 8 + 4 * 1437
    test_set = 360 * 8 * 8 + 4 * 360 + 360  # one batch: images, labels, which of them count
    assert need.shared == images + test_set
    assert need.total >= sum(round_.memory[:3]) + test_set


def test_what_fits():
    target = targets.Target('x', 'tpu', 'X', memory=1000)
    assert program.MemoryNeed(1000, 0).fits(target)
    assert not program.MemoryNeed(1001, 0).fits(target)
    assert program.MemoryNeed(300, 100).trials(target) == 4  # 900 beside the images, 200 each
    assert program.MemoryNeed(1001, 0).trials(target) == 0
    assert targets.Target('x', 'gpu', 'X', memory=1000).usable == 750
    assert program.MemoryNeed(10**9, 0).fits(targets.Target('x', 'cpu', 'X', memory=None))


def test_a_run_that_does_not_fit(capsys, monkeypatch, compiled):
    """The tiny run in a memory that is too small for it by a byte."""
    need = program.memory(*compiled).total
    monkeypatch.setattr(machine, 'host_memory', lambda: need - 1)
    assert main([*WORDS, '--target=cpu']) == 2
    printed = capsys.readouterr()
    assert 'fits: no\n' in printed.out
    assert_one_line(printed.err, ['does not fit', 'client_chunk=3'])
