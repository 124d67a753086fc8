"""Floors of time, by hand: arithmetic, bytes, devices and peaks."""

import itertools

import jax
import pytest

from benchmarks import arithmetic
from configs import cifar10, svhn
from semisfl_jax import config as config_lib
from semisfl_jax import core
from semisfl_jax.preview import program, targets


def padding(model):
    """Operations of one forward pass that a convolution's padding takes, which floors do not count: first, all."""
    sides, channels = ((32, 16, 8, 8, 8), (3, 64, 192, 384, 256, 256)) if model == 'alexnet' else ((), (0,))
    layers = zip(sides, itertools.pairwise(channels), strict=True)
    lost = [2 * (9 * s**2 - (3 * s - 2) ** 2) * a * b for s, (a, b) in layers]
    return (lost[0] if lost else 0), sum(lost)


@pytest.mark.parametrize(('model', 'config'), [('cnn', svhn.get_config()), ('alexnet', cifar10.get_config())])
def test_arithmetic_by_hand(model, config):
    experiment = program.shape_experiment(config_lib.resolve(config), None)
    work = program.floors(experiment)
    first, lost = padding(model)
    supervised = 100 * 64 * (arithmetic.supervised(model) - 4 * lost + first)
    images = 10 * 64 * (arithmetic.cross_entity(model) - 4 * lost + first)
    clients = 50 * (images + arithmetic.similarity(10, 64))
    assert work.supervised.operations == pytest.approx(supervised, rel=0.015)  # activations, pooling, losses
    assert work.clients.operations == pytest.approx(clients, rel=0.015)
    assert supervised < work.supervised.operations * 1.01


def test_bytes_by_hand():
    """The CNN: weights and momentum of the student read and written, the teacher too; the rest once in, once out."""
    config = config_lib.resolve(svhn.get_config())
    experiment = program.shape_experiment(config, None)
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
    mesh = jax.sharding.AbstractMesh((4,), (core.AXIS,))
    alone = program.floors(program.shape_experiment(config, None))
    together = program.floors(program.shape_experiment(config, None)._replace(mesh=mesh))
    assert together.supervised == alone.supervised
    assert together.clients.operations == pytest.approx(alone.clients.operations * 3 / 10)  # of 12, two of them padding
    assert together.clients.bytes < alone.clients.bytes


def test_peaks_of_targets():
    for target in targets.TARGETS.values():
        assert target.source
        assert 0 < target.peak['float32'] <= target.peak['tf32'] <= target.peak['bfloat16']
        assert 1e11 < target.bandwidth < 1e13
        assert target.usable <= target.memory
        assert bool(target.cores) == (target.platform == 'gpu')
    assert targets.TARGETS['v5e'].peak['float32'] == pytest.approx(197e12 / 6)
