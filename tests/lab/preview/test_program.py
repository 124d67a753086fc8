"""A round as the preview compiles it: shapes, memory, what fits, and floors of time by hand."""

import itertools
from types import MappingProxyType

import jax
import numpy as np
import pytest

from benchmarks import arithmetic
from configs import cifar10, svhn
from semisfl_jax import config as config_lib
from semisfl_jax import core, data
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.preview import program, targets
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import shapes
from semisfl_jax.training.driver import Driver, init_state
from tests.helpers import runs
from tests.helpers.marks import slow_but
from tests.helpers.one_line import assert_one_line

WORDS = runs.words_of('preview')
ONE = jax.devices('cpu')[0]


def tiny(changes=MappingProxyType({})):
    config = runs.config()
    config.update_from_flattened_dict(dict(changes))
    return config_lib.resolve(config)


def test_channels_that_operations_do_not_know_are_refused_before_anything_is_built(monkeypatch):
    """But not where no view applies them."""
    arrays = {f'{split}_labels': np.arange(20) % 10 for split in data.dataset.SPLITS}
    arrays |= {f'{split}_images': np.zeros((20, 8, 8, 5), np.uint8) for split in data.dataset.SPLITS}
    made = data.dataset.make('mine', arrays, 10)
    weak = {'augment.supervised': 'weak', 'algorithm': 'supervised_only', 'k_u': 1}
    for changes in ({'augment.operations': 0}, weak):
        assert experiment_lib.build_shared(tiny(changes), made, None).model
    monkeypatch.setattr(experiment_lib, 'build_model', None)
    with pytest.raises(UserError, match=r'config\.augment\.operations=2: .* not of 5; use 0'):
        experiment_lib.build_shared(tiny({'augment.operations': 2}), made, None)


@pytest.fixture(scope='module')
def compiled():
    """The tiny run on the CPU: its experiment, round and evaluation."""
    experiment = shapes.build(tiny(), None)
    target = targets.get('cpu')
    traces = shapes.trace_round, shapes.trace_evaluation
    return experiment, *(program.compile_for(target, ONE, experiment, trace) for trace in traces)


def test_images_of_hollow_data_take_no_memory():
    config = svhn.get_config()
    hollow = data.shape_only_dataset(config.data)
    assert hollow.train_images.shape == (73_257, 32, 32, 3)
    assert hollow.test_images.shape == (26_032, 32, 32, 3)
    assert hollow.train_images.strides == (0, 0, 0, 0)
    assert set(np.unique(hollow.train_labels)) == set(range(10))
    config.data.update(name='stl10', image_size=48)
    assert np.sum(data.shape_only_dataset(config.data).train_labels < 0) == 100_000


@pytest.mark.slow
def test_memory_is_that_of_the_program_of_a_run(compiled):
    real = experiment_lib.build(tiny())
    state = init_state(real)(real.key)
    jit = experiment_lib.compile_with(real.config)
    arguments = real.key, state, *next(Driver([real]).inputs(0))[:2], np.int32(8)
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


def test_a_run_fits_to_the_last_byte():
    target = targets.Target('x', 'tpu', 'X', memory=1000)
    assert program.MemoryNeed(1000, 0).fits(target)
    assert not program.MemoryNeed(1001, 0).fits(target)
    assert program.MemoryNeed(300, 100).trials(target) == 4  # 900 beside the images, 200 each
    assert program.MemoryNeed(1001, 0).trials(target) == 0
    assert targets.Target('x', 'gpu', 'X', memory=1000).usable == 750
    assert program.MemoryNeed(10**9, 0).fits(targets.Target('x', 'cpu', 'X', memory=None))


@pytest.mark.slow
def test_a_run_that_does_not_fit(capsys, monkeypatch, compiled):
    """The tiny run in a memory that is too small for it by a byte."""
    need = program.memory(*compiled).total
    monkeypatch.setattr(machine, 'host_memory', lambda: need - 1)
    assert runs.command(*WORDS, '--target=cpu') == 2
    printed = capsys.readouterr()
    assert 'fits: no\n' in printed.out
    assert_one_line(printed.err, ['client_chunk=3'])


# --- floors of time


def padding(model):
    """Operations of one forward pass that a convolution's padding takes, which floors do not count: first, all."""
    sides, channels = ((32, 16, 8, 8, 8), (3, 64, 192, 384, 256, 256)) if model == 'alexnet' else ((), (0,))
    layers = zip(sides, itertools.pairwise(channels), strict=True)
    lost = [2 * (9 * s**2 - (3 * s - 2) ** 2) * a * b for s, (a, b) in layers]
    return (lost[0] if lost else 0), sum(lost)


@pytest.mark.parametrize(('model', 'config'), slow_but([('cnn', svhn.get_config()), ('alexnet', cifar10.get_config())]))
def test_floors_of_arithmetic_equal_products_by_hand(model, config):
    experiment = shapes.build(config_lib.resolve(config), None)
    work = program.floors(experiment)
    first, lost = padding(model)
    supervised = 100 * 64 * (arithmetic.supervised(model) - 4 * lost + first)
    images = 10 * 64 * (arithmetic.cross_entity(model) - 4 * lost + first)
    clients = 50 * (images + arithmetic.similarity(10, 64))
    assert work.supervised.operations == pytest.approx(supervised, rel=0.015)  # activations, pooling, losses
    assert work.clients.operations == pytest.approx(clients, rel=0.015)
    assert supervised < work.supervised.operations * 1.01


def test_floors_of_bytes_equal_reads_and_writes_by_hand():
    """The CNN: weights and momentum of the student read and written, the teacher too; the rest once in, once out."""
    config = config_lib.resolve(svhn.get_config())
    experiment = shapes.build(config, None)
    bottom = 5 * 5 * 3 * 32 + 32 + 5 * 5 * 32 * 64 + 64
    top = 1600 * 512 + 512 + 512 * 10 + 10
    head = 1600 * 1600 + 1600 + 1600 * 128 + 128
    activations = experiment.costs.pieces.whole_activations
    work = program.floors(experiment)
    whole = bottom + top + head
    assert work.supervised.bytes == 100 * (4 * 6 * whole + 2 * 64 * activations)
    assert work.clients.bytes == 50 * (4 * 4 * (10 * bottom + top + head) + 2 * 640 * activations)
    target = targets.TARGETS['h200']
    per_round = max(work.supervised.operations / 494.5e12, work.supervised.bytes / 4.8e12)
    per_round += max(work.clients.operations / 494.5e12, work.clients.bytes / 4.8e12)
    assert config.precision == 'tf32'
    assert program.hours(work, experiment, target) == pytest.approx(1000 * per_round / 3600)


def test_clients_are_divided_and_the_server_is_not():
    config = config_lib.resolve(svhn.get_config())
    mesh = jax.sharding.AbstractMesh((4,), (core.clients.AXIS,))
    alone = program.floors(shapes.build(config, None))
    together = program.floors(shapes.build(config, None)._replace(mesh=mesh))
    assert together.supervised == alone.supervised
    assert together.clients.operations == pytest.approx(alone.clients.operations * 3 / 10)  # of 12, two of them padding
    assert together.clients.bytes < alone.clients.bytes
