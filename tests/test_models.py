"""Parameter counts of the models in the authors' code, projection heads, first weights, and what images they take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.core.errors import UserError
from semisfl_jax.models import layers, lowerings, zoo
from semisfl_jax.models.split import ProjectionHead
from tests.architectures import count, shapes
from tests.convolution import convolve

# Kernels of a ResNet-9 and the channels they make; of a WideResNet-28-2, 1 x 1 shortcuts last, and the channels that
# its BatchNorms see.
RESNET9 = 9 * (3 * 64 + 64 * 128 + 2 * 128 * 128 + 128 * 256 + 256 * 512 + 2 * 512 * 512)
RESNET9_CHANNELS = 64 + 3 * 128 + 256 + 3 * 512
WIDE = 9 * (3 * 16 + 16 * 32 + 7 * 32 * 32 + 32 * 64 + 7 * 64 * 64 + 64 * 128 + 7 * 128 * 128)


WIDE += 16 * 32 + 32 * 64 + 64 * 128


WIDE_CHANNELS = (16 + 7 * 32) + (32 + 7 * 64) + (64 + 7 * 128) + 128


@pytest.mark.parametrize(
    ('name', 'bottom', 'buffers', 'top', 'features', 'head'),
    [
        ('cnn', 53_696, 0, 824_842, 1600, 2_766_528),
        ('alexnet', 2_251_584, 0, 33_603_594, 4096, 17_305_728),
        ('vgg13', 9_410_880, 5_888, 35_700_746, 4608, 4608 * 4608 + 4608 + 4608 * 128 + 128),
        ('vgg16', 14_723_136, 8_448, 69_623_908, 12_800, 12_800 * 12_800 + 12_800 + 12_800 * 128 + 128),
        # 3*3*1*16 + 16 + 3*3*16*32 + 32; D = 2*2*32; 128*64 + 64 + 64*10 + 10; 128*128 + 128 + 128*128 + 128
        ('small_cnn', 4_800, 0, 8_906, 128, 33_024),
        ('resnet9', RESNET9 + 3 * RESNET9_CHANNELS, 2 * RESNET9_CHANNELS, 512 * 10 + 10, 512, 328_320),
        ('resnet9_plain', RESNET9, 0, 512 * 10, 512, 328_320),
        ('wresnet28x2', WIDE + 2 * WIDE_CHANNELS, 2 * WIDE_CHANNELS, 128 * 10 + 10, 128, 33_024),
    ],
)
def test_parameter_counts(name, bottom, buffers, top, features, head):
    model, variables = shapes(name)
    assert count(variables.bottom['params']) == bottom
    assert count(variables.bottom.get('batch_stats', {})) == buffers
    assert count(variables.top['params']) == top
    assert count(variables.top.get('batch_stats', {})) == 0
    assert (model.feature_size, model.projection_size) == (features, 128)
    assert count(variables.proj) == head


@pytest.mark.parametrize(
    ('projection', 'size', 'parameters'),
    [('mlp', 16, 128 * 128 + 128 + 128 * 16 + 16), ('linear', 16, 128 * 16 + 16), ('none', 128, 0)],
)
def test_projection_heads(projection, size, parameters):
    model, _ = shapes('small_cnn', projection=projection, projection_dim=16)
    assert model.projection_size == size
    variables = model.init(jax.random.key(0)).proj
    assert count(variables) == parameters
    features = jax.random.normal(jax.random.key(1), (5, 128))
    rows = model.project(variables, features)
    assert rows.shape == (5, size)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-6)
    if projection == 'none':
        np.testing.assert_allclose(rows, features / np.linalg.norm(features, axis=1, keepdims=True), rtol=1e-5)


def test_projection_of_zero_features_has_no_nan_gradient():
    head = ProjectionHead('none', 0)
    gradient = jax.grad(lambda x: jnp.sum(head.apply({}, x)))(jnp.zeros((2, 4)))
    assert np.all(np.isfinite(gradient))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cnn', 'resnet9', 'wresnet28x2'])
def test_bfloat16_computes_in_bfloat16_and_keeps_float32(name):
    """Parameters, features, logits and projections are float32; products in between take bfloat16 on both sides."""
    model = models.build(name, 10, (32, 32, 3), convolution='native', dtype='bfloat16')
    exact = models.build(name, 10, (32, 32, 3), convolution='native')
    params = model.init(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('float32')}
    x = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))

    def outputs(model):
        features, _ = model.bottom(params.bottom, x, None, False)
        return features, model.top(params.top, features, None, False)[0], model.project(params.proj, features)

    for got, expected in zip(outputs(model), outputs(exact), strict=True):
        assert got.dtype == jnp.float32
        error = jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected)
        assert 1e-5 < error < 0.05  # bfloat16 keeps 8 bits: 0.4 % a number
    text = jax.jit(lambda: outputs(model)).lower().as_text()
    products = [line for line in text.splitlines() if 'stablehlo.convolution' in line or 'stablehlo.dot' in line]
    assert products
    assert all('bf16' in line for line in products)


def test_initial_weights_are_pytorch_uniform():
    model = models.build('cnn', 10, (32, 32, 3))
    for piece in model.init(jax.random.key(0))[:2]:
        for name, layer in piece['params'].items():
            layer = layer.get('dense', layer)
            bound = np.prod(layer['kernel'].shape[:-1]) ** -0.5
            for leaf in (layer['kernel'], layer['bias']):
                assert np.max(np.abs(leaf)) <= bound, name
            assert np.std(layer['kernel']) == pytest.approx(bound / np.sqrt(3), rel=0.1)


@pytest.mark.parametrize('lowering', lowerings.LOWERINGS)
@pytest.mark.parametrize(('name', 'shape'), [('cnn', (8, 8, 1)), ('alexnet', (4, 4, 3)), ('resnet9', (4, 4, 3))])
def test_images_too_small(name, shape, lowering):
    with pytest.raises(UserError, match='images are too small for this model'):
        models.build(name, 10, shape, convolution=lowering)


def test_batch_norm_moves_in_training_alone():
    architecture = zoo.Architecture(
        (
            lambda name: layers.ConvLayer(4, norm=True, name=name),
            lambda name: layers.DenseLayer(3, activation=False, name=name),
        ),
        1,
    )
    model = models.cut(architecture, (6, 6, 2), None, 'linear', 8)
    variables = model.init(jax.random.key(0)).bottom
    images = 3.0 + jax.random.normal(jax.random.key(1), (16, 6, 6, 2))
    _, same = model.bottom(variables, images, None, False)
    assert same is variables
    _, moved = model.bottom(variables, images, None, True)
    kernel, bias = (np.asarray(variables['params']['layer_0'][name]) for name in ('kernel', 'bias'))
    before = convolve(np.asarray(images), kernel, 1) + bias
    np.testing.assert_allclose(moved['batch_stats']['layer_0']['norm']['mean'], 0.1 * before.mean((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(
        moved['batch_stats']['layer_0']['norm']['var'], 0.9 + 0.1 * before.var((0, 1, 2)), rtol=1e-4
    )
