"""Models for dense tasks: parameters, first weights, costs; layers and decoders against NumPy; what training moves."""

import functools

import chex
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.costs.prices import DenseSpec, measure
from semisfl_jax.models.dense_zoo import DeepLab, SceneDecoder, SceneEncoder
from semisfl_jax.models.layers import resize
from semisfl_jax.models.resnet import ResNet
from semisfl_jax.models.weights import torch_name
from tests.helpers import dense_twin
from tests.helpers.architectures import count

SHAPE = (18, 21, 3)
# Encoder, decoder of two outputs: the kinds of the models by name, at a fraction of their width.
NARROW = {
    'scene_net': (SceneEncoder(3, (4, 5, 6)), SceneDecoder(2, width=4)),
    'deeplabv3plus': (
        ResNet((1, 1, 1, 1), True, 8, stem=4, widths=(2, 2, 3, 2)),
        DeepLab(2, (1, 2, 3), width=4, low_width=3),
    ),
}


@functools.cache
def narrow(name):
    """A small model and its variables."""
    model = models.encoder_decoder(*NARROW[name], SHAPE)
    return model, jax.jit(model.init)(jax.random.key(0))


def shapes(name, outputs=21, shape=(64, 64, 3), **options):
    model = models.build_dense(name, outputs, shape, **options)
    return model, jax.eval_shape(model.init, jax.random.key(0))


# --- parameters

# Parameters, running statistics, and arrays: per convolution a kernel and four of its BatchNorm
ENCODERS = {18: (11_176_512, 9_600, 100), 50: (23_508_032, 53_120, 265), 101: (42_500_160, 105_344, 520)}
# ASPP of c channels: 2 * 256 c + 3 * 9 * 256 c + 5 * 256^2, six BatchNorms of 2 * 256; the 3x3 and its BatchNorm
HEADS = {('v3', 18): 4_722_176, ('v3', 50): 16_125_440, ('v3plus', 18): 5_426_272}
# V3+ beside V3: the low-level layer of 256 channels, and a second 3x3 whose input has 48 more
HEADS['v3plus', 101] = HEADS['v3', 50] + 256 * 48 + 2 * 48 + 9 * (256 + 48) * 256 + 2 * 256


@pytest.mark.slow
@pytest.mark.parametrize(('head', 'depth'), HEADS)
def test_parameters_and_names_of_deeplab(head, depth):
    model, variables = shapes(f'deeplab{head}_resnet{depth}', outputs=7)
    names = {torch_name(parts) for parts in flax.traverse_util.flatten_dict(variables.bottom)}
    assert (count(variables.bottom['params']), count(variables.bottom['batch_stats']), len(names)) == ENCODERS[depth]
    assert ('layer3.22.conv3.weight' in names) == (depth == 101)
    assert ('layer1.0.downsample.1.running_var' in names) == (depth > 18)
    assert count(variables.top['params']) == HEADS[head, depth] + 257 * 7
    assert (variables.proj, model.projection_size) == ({'params': {}}, 0)
    expansion = 4 if depth > 18 else 1
    assert model.feature_size == expansion * (8 * 8 * 512 + (16 * 16 * 64 if head == 'v3plus' else 0))


@pytest.mark.slow
@pytest.mark.parametrize(('stride', 'side', 'rates'), [(8, 8, (12, 24, 36)), (32, 2, (6, 12, 18))])
def test_the_output_stride_sets_the_last_map_and_the_dilations(stride, side, rates):
    """Dilations of the decoder depend on the stride."""
    model, variables = shapes('deeplabv3plus_resnet18', output_stride=stride)
    batch = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32)
    maps = jax.eval_shape(lambda bottom, x: model.bottom(bottom, x, None, False)[0], variables.bottom, batch)
    assert [feature_map.shape for feature_map in maps] == [(2, 16, 16, 64), (2, side, side, 512)]
    jaxpr = str(jax.make_jaxpr(lambda top, maps: model.top(top, maps, None, False)[0])(variables.top, maps))
    for rate in (6, 12, 18, 24, 36):
        assert (f'rhs_dilation=({rate}, {rate})' in jaxpr) == (rate in rates)


@pytest.mark.slow
def test_first_weights_have_the_deviations_of_torchvision():
    """Kaiming's normal in the encoder, sqrt(2 / fan_out); PyTorch's uniform in DeepLab, 1 / sqrt(3 fan_in). Tasks
    share the encoder that a key gives."""
    encoder = ResNet((1, 1, 1, 1), False, maps=(5,), stem=16, widths=(16, 16, 24, 24))
    variables, other = (
        jax.jit(models.encoder_decoder(encoder, DeepLab(n, (1, 2, 3), width=16), SHAPE).init)(jax.random.key(0))
        for n in (3, 2)
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, variables.bottom, other.bottom))
    for piece, expected in (
        (variables.bottom, lambda size, inputs, outputs: (2 / (size * outputs)) ** 0.5),
        (variables.top, lambda size, inputs, outputs: (3 * size * inputs) ** -0.5),
    ):
        for path, leaf in jax.tree_util.tree_leaves_with_path(piece['params']):
            if path[-1].key == 'kernel':
                high, wide, inputs, outputs = leaf.shape
                tolerance = 5 / np.sqrt(leaf.size)
                assert np.std(leaf) == pytest.approx(expected(high * wide, inputs, outputs), rel=tolerance), path
            elif 'norm' in jax.tree_util.keystr(path):
                assert np.all(leaf == (path[-1].key == 'scale'))


def test_the_smallest_images_have_features():
    assert models.build_dense('scene_net', 3, (8, 9, 3)).feature_size == 4 * 4 * 32 + 2 * 2 * 48 + 64
    assert models.build_dense('deeplabv3_resnet18', 3, (1, 1, 3)).feature_size == 512  # it rounds up


@pytest.mark.slow
def test_bytes_and_operations_of_the_scene_net():
    """Products alone, where a kernel lies on the map: (3 s - 2)^2 multiply-adds a pair of channels at side s."""
    pieces = measure(DenseSpec('scene_net', 11, (48, 48, 3), 8))
    kernels = 9 * (3 * 16 + 16 * 32 + 32 * 48 + 48 * 64 + 64 * 64) + 2 * (16 + 32 + 48 + 64 + 64)
    laterals, smooth = (32 + 48 + 64) * 32, 2 * 9 * 32 * 32 + 2 * 5 * 32 + 33 * 11
    statistics = 2 * (16 + 32 + 48 + 64 + 64), 2 * 5 * 32
    assert (pieces.bottom, pieces.top) == (4 * (kernels + statistics[0]), 4 * (laterals + smooth + statistics[1]))
    assert pieces.statistics == 4 * sum(statistics)
    assert pieces.features == 4 * (24 * 24 * 32 + 12 * 12 * 48 + 6 * 6 * 64)  # three maps cross the cut
    assert pieces.head_work.train == pieces.pair_work.train == 0

    def three(side, inputs, outputs):
        return 2 * (3 * side - 2) ** 2 * inputs * outputs

    encoder = [three(48, 3, 16), three(24, 16, 32), three(12, 32, 48), three(6, 48, 64), three(6, 64, 64)]
    assert sum(encoder) < pieces.bottom_work.forward < 1.05 * sum(encoder)
    assert 3 * sum(encoder) - encoder[0] < pieces.bottom_work.train < 1.1 * (3 * sum(encoder) - encoder[0])
    decoder = 2 * 32 * (6**2 * 64 + 12**2 * 48 + 24**2 * 32), three(12, 32, 32), three(24, 32, 32), 2 * 24**2 * 32 * 11
    # One side after the other: 6 to 12 and 12 to 24 with 32 channels, 24 to 48 with the outputs
    resizing = (2 * c * (2 * n * n * n + 4 * n * n * n) for n, c in ((6, 32), (12, 32), (24, 11)))
    assert 1 < pieces.top_work.forward / (sum(decoder) + sum(resizing)) < 1.05


# --- against NumPy


def drawn(variables, seed=0):
    """Statistics and scales unlike those that a network starts with."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        low = {'mean': -0.5, 'var': 0.5, 'scale': 0.5, 'bias': -0.5}.get(path[-1].key)
        return leaf if low is None else jnp.asarray(rng.uniform(low, low + 1, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, variables)


@pytest.mark.parametrize(('old', 'new'), [((2, 3), (8, 9)), ((6, 5), (3, 5)), ((1, 1), (4, 3))])
def test_bilinear_resizing_equals_numpy(old, new):
    x = np.random.default_rng(0).normal(size=(2, *old, 3))
    np.testing.assert_allclose(resize(jnp.float32(x), *new), dense_twin.resize(x, *new), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_deeplabv3plus_to_the_size_of_the_images():
    """With ASPP, whose last dilation is beyond the map: the logits at the images' size."""
    rates = 1, 2, 7
    encoder = ResNet((1, 2, 2, 2), True, 16, stem=4, widths=(4, 6, 5, 3))
    model = models.encoder_decoder(encoder, DeepLab(5, rates, width=6, low_width=3), (21, 66, 3))
    top = drawn(model.init(jax.random.key(0)).top)
    rng = np.random.default_rng(3)
    low, last = rng.normal(size=(2, 6, 17, 16)), rng.normal(size=(2, 2, 5, 12))  # by 4 and by 16, rounded up
    got, same = jax.jit(lambda top, maps: model.top(top, maps, None, False))(top, (jnp.float32(low), jnp.float32(last)))
    assert jax.tree.all(jax.tree.map(np.array_equal, same, top))
    expected = dense_twin.deeplabv3plus(top, low, last, rates, 21, 66)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


# --- training


@pytest.mark.slow
@pytest.mark.parametrize('name', NARROW)
def test_only_training_draws_and_moves_statistics(name):
    model, variables = narrow(name)
    x = 2.0 + jax.random.normal(jax.random.key(1), (4, *SHAPE))

    @functools.partial(jax.jit, static_argnums=1)
    def run(key, train):
        maps, bottom = model.bottom(variables.bottom, x, jax.random.fold_in(key, 0), train)
        outputs, top = model.top(variables.top, maps, jax.random.fold_in(key, 1), train)
        return outputs, (bottom, top)

    one, other = jax.random.key(0), jax.random.key(1)
    outputs, same = run(one, False)
    np.testing.assert_array_equal(outputs, run(other, False)[0])
    assert jax.tree.all(jax.tree.map(np.array_equal, same, (variables.bottom, variables.top)))
    outputs, moved = run(one, True)
    assert (outputs.shape, outputs.dtype) == ((4, *SHAPE[:2], 2), jnp.float32)
    drawn_alike = np.array_equal(outputs, run(other, True)[0])
    assert drawn_alike == (name == 'scene_net')  # DeepLab's decoders have dropout
    old = variables.bottom['batch_stats'], variables.top['batch_stats']
    new = moved[0]['batch_stats'], moved[1]['batch_stats']
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, old, new)))  # every one has moved


def test_rows_that_are_not_valid_do_not_count():
    """Three valid rows of five move the statistics as three alone do."""
    model, variables = narrow('scene_net')
    x = jax.random.normal(jax.random.key(1), (5, *SHAPE))

    def statistics(x, rows):
        maps, bottom = model.bottom(variables.bottom, x, None, True, rows)
        _, top = model.top(variables.top, maps, None, True, rows)
        return bottom['batch_stats'], top['batch_stats']

    valid = jnp.array([True, False, True, True, False])
    alone = jax.jit(lambda x: statistics(x, None))(x[valid])
    chex.assert_trees_all_close(jax.jit(statistics)(x, valid), alone, rtol=1e-3, atol=1e-5)
