"""Models for dense tasks: parameters, strides, first weights, names and costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.core.errors import UserError
from semisfl_jax.costs.prices import DenseSpec, measure
from semisfl_jax.models.dense_zoo import DeepLabV3, ResNet, SceneDecoder
from tests.dense_models import NARROW, SHAPE, narrow
from tests.marks import slow_but


def count(variables):
    return sum(leaf.size for leaf in jax.tree.leaves(variables))


def shapes(name, outputs=21, shape=(64, 64, 3), **options):
    model = models.build_dense(name, outputs, shape, **options)
    return model, jax.eval_shape(model.init, jax.random.key(0))


# --- parameters

ENCODERS = {18: (11_176_512, 9_600), 50: (23_508_032, 53_120), 101: (42_500_160, 105_344)}  # and running statistics


# ASPP of c channels: 2 * 256 c + 3 * 9 * 256 c + 5 * 256^2, six BatchNorms of 2 * 256; the 3x3 and its BatchNorm
HEADS = {('v3', 18): 4_722_176, ('v3', 50): 16_125_440, ('v3plus', 18): 5_426_272}
HEADS['v3', 101] = HEADS['v3', 50]


# V3+ beside V3: the low-level layer of 256 channels, and a second 3x3 whose input has 48 more
HEADS['v3plus', 50] = HEADS['v3plus', 101] = HEADS['v3', 50] + 256 * 48 + 2 * 48 + 9 * (256 + 48) * 256 + 2 * 256


@pytest.mark.parametrize('depth', slow_but([18, 50, 101], 18, 50))
@pytest.mark.parametrize('head', ['v3', 'v3plus'])
def test_parameters_of_deeplab(head, depth):
    model, variables = shapes(f'deeplab{head}_resnet{depth}', outputs=7)
    assert (count(variables.bottom['params']), count(variables.bottom['batch_stats'])) == ENCODERS[depth]
    assert count(variables.top['params']) == HEADS[head, depth] + 257 * 7
    assert (variables.proj, model.projection_size) == ({'params': {}}, 0)
    expansion = 4 if depth > 18 else 1
    assert model.feature_size == expansion * (8 * 8 * 512 + (16 * 16 * 64 if head == 'v3plus' else 0))


def test_parameters_of_the_scene_net():
    """At 48x48, maps of 24, 12 and 6 pixels cross the cut."""
    model, variables = shapes('scene_net', outputs=11, shape=(48, 48, 3))
    kernels = 9 * (3 * 16 + 16 * 32 + 32 * 48 + 48 * 64 + 64 * 64)
    assert count(variables.bottom['params']) == kernels + 2 * (16 + 32 + 48 + 64 + 64) == 83_824
    laterals, smooth = (32 + 48 + 64) * 32, 2 * 9 * 32 * 32
    assert count(variables.top['params']) == laterals + smooth + 2 * 5 * 32 + 33 * 11 == 23_360 + 33 * 11
    assert model.feature_size == 24 * 24 * 32 + 12 * 12 * 48 + 6 * 6 * 64


@pytest.mark.parametrize(
    ('stride', 'side', 'rates'), [(8, 8, (12, 24, 36)), (16, 4, (6, 12, 18)), (32, 2, (6, 12, 18))]
)
def test_output_strides(stride, side, rates):
    """Parameters do not depend on the stride; dilations of the decoder do."""
    model, variables = shapes('deeplabv3plus_resnet18', output_stride=stride)
    batch = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32)
    maps = jax.eval_shape(lambda bottom, x: model.bottom(bottom, x, None, False)[0], variables.bottom, batch)
    assert [feature_map.shape for feature_map in maps] == [(2, 16, 16, 64), (2, side, side, 512)]
    assert count(variables.top['params']) == HEADS['v3plus', 18] + 257 * 21
    jaxpr = str(jax.make_jaxpr(lambda top, maps: model.top(top, maps, None, False)[0])(variables.top, maps))
    for rate in (6, 12, 18, 24, 36):
        assert (f'rhs_dilation=({rate}, {rate})' in jaxpr) == (rate in rates)


def test_tasks_share_the_encoder_that_a_key_gives():
    one, other = (models.encoder_decoder(NARROW['scene_net'][0], SceneDecoder(n, width=4), SHAPE) for n in (2, 5))
    first, second = (jax.jit(model.init)(jax.random.key(3)) for model in (one, other))
    assert jax.tree.all(jax.tree.map(np.array_equal, first.bottom, second.bottom))
    assert jax.tree.map(np.shape, first.top) != jax.tree.map(np.shape, second.top)


def test_initial_weights():
    """Kaiming's normal in the encoder, sqrt(2 / fan_out); PyTorch's uniform in DeepLab, 1 / sqrt(3 fan_in)."""
    encoder = ResNet((1, 1, 1, 1), False, low_level=False, stem=16, widths=(16, 16, 24, 24))
    model = models.encoder_decoder(encoder, DeepLabV3(3, (1, 2, 3), width=16), SHAPE)
    variables = jax.jit(model.init)(jax.random.key(0))
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


# --- names and messages


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (lambda: models.build('scene_net', 10, (48, 48, 3)), "'scene_net' is for dense tasks.* use one of small_cnn"),
        (lambda: models.build_dense('cnn', 3, (48, 48, 3)), "'cnn' is for classification.* use one of scene_net"),
        (lambda: models.build_dense('scenenet', 3, (48, 48, 3)), "'scenenet' is unknown.*did you mean 'scene_net'"),
        (lambda: models.build_dense('scene_net', 3, (7, 48, 3)), 'images are too small for this model'),
        (lambda: models.build_dense('scene_net', 3, (48, 48, 3), output_stride=16), 'output_stride=16 .*; use 8$'),
        (
            lambda: models.build_dense('deeplabv3_resnet18', 3, (48, 48, 3), output_stride=4),
            r"output_stride=4 .*'deeplabv3_resnet18'; use 8, 16, 32$",
        ),
        (lambda: narrow('scene_net')[0].project({}, None), 'no projection head'),
    ],
)
def test_what_is_not_possible(build, message):
    with pytest.raises(UserError, match=message):
        build()


def test_the_smallest_images():
    assert models.build_dense('scene_net', 3, (8, 9, 3)).feature_size == 4 * 4 * 32 + 2 * 2 * 48 + 64
    assert models.build_dense('deeplabv3_resnet18', 3, (1, 1, 3)).feature_size == 512  # it rounds up


# --- costs


def test_bytes_and_operations_of_the_scene_net():
    """Products alone, where a kernel lies on the map: (3 s - 2)^2 multiply-adds a pair of channels at side s."""
    pieces = measure(DenseSpec('scene_net', 11, (48, 48, 3), 8))
    statistics = 2 * (16 + 32 + 48 + 64 + 64), 2 * 5 * 32
    assert (pieces.bottom, pieces.top) == (4 * (83_824 + statistics[0]), 4 * (23_360 + 33 * 11 + statistics[1]))
    assert pieces.statistics == 4 * sum(statistics)
    assert pieces.features == 4 * (24 * 24 * 32 + 12 * 12 * 48 + 6 * 6 * 64)
    assert pieces.head_work.train == pieces.pair_work.train == 0

    def three(side, inputs, outputs):
        return 2 * (3 * side - 2) ** 2 * inputs * outputs

    encoder = [three(48, 3, 16), three(24, 16, 32), three(12, 32, 48), three(6, 48, 64), three(6, 64, 64)]
    decoder = [
        2 * 32 * (6**2 * 64 + 12**2 * 48 + 24**2 * 32),
        three(12, 32, 32),
        three(24, 32, 32),
        2 * 24**2 * 32 * 11,
    ]
    # Resizing, one side after the other: 6 to 12 and 12 to 24 with 32 channels, 24 to 48 with the outputs. Its matrices
    # have no gradient.
    resizing = [2 * c * (2 * n * n * n + 4 * n * n * n) for n, c in ((6, 32), (12, 32), (24, 11))]
    for work, forward, train in (
        (pieces.bottom_work, sum(encoder), 3 * sum(encoder) - encoder[0]),
        (pieces.top_work, sum(decoder + resizing), 3 * sum(decoder) + 2 * sum(resizing)),
    ):
        assert forward < work.forward < 1.05 * forward
        assert train < work.train < 1.1 * train
