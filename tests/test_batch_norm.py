"""BatchNorm's running variance, against NumPy and, where it is installed, PyTorch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import models
from semisfl_jax.algorithms import semifl
from semisfl_jax.config import command_line
from semisfl_jax.models import layers
from semisfl_jax.training import experiment
from tests import runs, toy
from tests.convolution import convolve

VARIANCES = {'biased': 0, 'unbiased': 1}  # what is subtracted from n, NumPy's ddof


@functools.cache
def one_layer(variance, dtype='float32'):
    """A 3 x 3 convolution with BatchNorm on 2 x 2 images, then a classifier."""
    compute = layers.Compute(dtype, 'native', variance)
    architecture = models.zoo.Architecture(
        (
            lambda name: layers.ConvLayer(4, norm=True, compute=compute, name=name),
            lambda name: layers.DenseLayer(3, activation=False, name=name),
        ),
        1,
    )
    return models.cut(architecture, (2, 2, 3), None, 'linear', 8)


def normed(variables):
    return variables['batch_stats']['layer_0']['norm']


def convolved(variables, images):
    kernel, bias = (np.asarray(variables['params']['layer_0'][name]) for name in ('kernel', 'bias'))
    return convolve(np.asarray(images), kernel, 1) + bias


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('variance', VARIANCES)
def test_two_training_steps(variance, dtype):
    """Two images of 2 x 2 pixels: n = 8, so the two kinds are 12 % apart. Outputs are the same for both."""
    model, plain = one_layer(variance, dtype), one_layer('biased', dtype)
    variables = moved = model.init(jax.random.key(0)).bottom
    mean, var = np.zeros(4), np.ones(4)
    for step in (1, 2):
        images = 3.0 + jax.random.normal(jax.random.key(step), (2, 2, 2, 3))
        features, moved = model.bottom(moved, images, None, True)
        np.testing.assert_array_equal(features, plain.bottom(variables, images, None, True)[0])
        before = convolved(variables, images)
        mean = 0.9 * mean + 0.1 * before.mean((0, 1, 2))
        var = 0.9 * var + 0.1 * before.var((0, 1, 2), ddof=VARIANCES[variance])
    tolerance = {'float32': 1e-5, 'bfloat16': 3e-2}[dtype]
    np.testing.assert_allclose(normed(moved)['mean'], mean, rtol=tolerance)
    np.testing.assert_allclose(normed(moved)['var'], var, rtol=tolerance)
    assert normed(moved)['var'].dtype == jnp.float32
    _, same = model.bottom(moved, images, None, False)
    assert same is moved


@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('variance', VARIANCES)
def test_the_rows_of_all_clients_count(variance, devices):
    """The server's BatchNorm spans the clients, here 3 of one row on each device: n = 9 pixels times all rows."""
    axes = ('devices',) if devices > 1 else ()
    model = toy.model(split_index=1, top_norm=True, variance=variance, axes=axes)
    top = jax.tree.map(jnp.copy, model.init(jax.random.key(0)).top)
    features = jax.random.normal(jax.random.key(1), (devices, 3, 1, model.feature_size))
    keys = jax.random.split(jax.random.key(2), (devices, 3))
    if devices > 1:
        _, moved = jax.vmap(model.tops, in_axes=(None, 0, 0), out_axes=(0, None), axis_name='devices')(
            top, features, keys
        )
    else:
        _, moved = model.tops(top, features[0], keys[0])
    layer = top['params']['layer_1']
    rows = np.asarray(features).reshape(-1, 3, 3, 4)
    seen = convolve(rows, np.asarray(layer['kernel']), 1) + np.asarray(layer['bias'])
    assert seen[..., 0].size == devices * 3 * 9
    expected = 0.9 + 0.1 * seen.var((0, 1, 2), ddof=VARIANCES[variance])
    np.testing.assert_allclose(moved['batch_stats']['layer_1']['norm']['var'], expected, rtol=1e-5)


def test_a_single_number_has_the_variance_zero():
    """PyTorch refuses to train on one number a channel. Here its unbiased variance is 0, and not 0 / 0."""
    norm = layers.UnbiasedBatchNorm(False, momentum=0.9)
    variables = norm.init(jax.random.key(0), jnp.ones((1, 4)))
    np.testing.assert_array_equal(variables['batch_stats']['var'], 1.0)
    _, moved = norm.apply(variables, jnp.full((1, 4), 5.0), mutable='batch_stats')
    np.testing.assert_allclose(moved['batch_stats']['var'], 0.9, rtol=1e-6)


@pytest.mark.parametrize('variance', VARIANCES)
def test_as_pytorch(variance):
    """`unbiased` is PyTorch's step, and with `recompute` its cumulative average (momentum None); `biased` is not."""
    torch = pytest.importorskip('torch')
    model = one_layer(variance)
    variables = model.init(jax.random.key(0))
    batches = np.random.default_rng(0).normal(1.0, 2.0, (3, 2, 2, 2, 3)).astype(np.float32)
    step, average = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4, momentum=None)
    moved = variables.bottom
    for images in batches:
        _, moved = model.bottom(moved, jnp.asarray(images), None, True)
        rows = torch.from_numpy(convolved(variables.bottom, images)).float().permute(0, 3, 1, 2)
        step(rows)
        average(rows)
    taken = semifl.recompute_statistics(model, variables, jnp.asarray(batches).__getitem__, 3, jax.random.key(1)).bottom
    for statistics, expected in ((normed(moved), step), (normed(taken), average)):
        np.testing.assert_allclose(statistics['mean'], expected.running_mean, rtol=1e-4, atol=1e-6)
        close = np.allclose(statistics['var'], expected.running_var, rtol=1e-4)
        assert close == (variance == 'unbiased')


@pytest.mark.slow
def test_the_key_reaches_the_model_of_a_run():
    """One step on two images of 8 x 8 pixels: what the first variance moved by differs by 128 / 127."""
    moves = []
    for variance in VARIANCES:
        changes = {'model__name': 'resnet9', 'model__batch_norm_variance': variance, 'model__projection': 'none'}
        built = experiment.build(config_lib.resolve(runs.config(**changes)))
        variables = jax.jit(built.model.init)(jax.random.key(0)).bottom
        images = jnp.asarray(built.dataset.train_images[:2], jnp.float32)
        _, moved = jax.jit(lambda v, x, run=built.model.bottom: run(v, x, None, True))(variables, images)
        moves.append(normed(moved)['var'] - 0.9)
    np.testing.assert_allclose(moves[1] / moves[0], 128 / 127, rtol=1e-4)


@pytest.mark.parametrize('algorithm', ['fedavg', 'fedprox', 'splitfed', 'semifl'])
def test_official_settings_of_pytorch_implementations(algorithm):
    """FedMatch's model has no BatchNorm."""
    words = ['launch.py', runs.DIGITS, f'--config.algorithm={algorithm}']
    assert command_line.parse(words).config.model.batch_norm_variance == 'biased'
    assert command_line.parse([*words, '--config.setting=official']).config.model.batch_norm_variance == 'unbiased'
