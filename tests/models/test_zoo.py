"""Parameter counts of the models in the authors' code, projection heads, first weights, and what is no model."""

from functools import partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.models import layers, zoo
from semisfl_jax.models.split import ProjectionHead
from tests.helpers.architectures import count, shapes
from tests.helpers.marks import slow_but

# Kernels of a ResNet-9 and the channels they make; of a WideResNet-28-2, 1 x 1 shortcuts last, and the channels that
# its BatchNorms see; of a CNN13.
RESNET9 = 9 * (3 * 64 + 64 * 128 + 2 * 128 * 128 + 128 * 256 + 256 * 512 + 2 * 512 * 512)
RESNET9_CHANNELS = 64 + 3 * 128 + 256 + 3 * 512
WIDE = 9 * (3 * 16 + 16 * 32 + 7 * 32 * 32 + 32 * 64 + 7 * 64 * 64 + 64 * 128 + 7 * 128 * 128)
WIDE += 16 * 32 + 32 * 64 + 64 * 128
WIDE_CHANNELS = (16 + 7 * 32) + (32 + 7 * 64) + (64 + 7 * 128) + 128
CNN13 = 3456 + 2 * 147_456 + 294_912 + 2 * 589_824 + 1_179_648 + 131_072 + 32_768
CNN13_CHANNELS = 3 * 128 + 3 * 256 + 512 + 256 + 128


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
        ('mlp5000', 784 * 5000 + 5000, 0, 5000 * 10 + 10, 5000, 5000 * 5000 + 5000 + 5000 * 128 + 128),
        ('mlp200', 784 * 200 + 200, 0, 200 * 10 + 10, 200, 200 * 200 + 200 + 200 * 128 + 128),
        ('cnn13', CNN13 + 3 * CNN13_CHANNELS, 2 * CNN13_CHANNELS, 128 * 10 + 10, 128, 33_024),
    ],
)
def test_models_have_the_parameters_of_the_authors_code(name, bottom, buffers, top, features, head):
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
def test_projection_heads_give_unit_rows_of_their_width(projection, size, parameters):
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


@pytest.mark.parametrize(
    ('build', 'name'),
    slow_but([(models.build, 'small_cnn'), (models.build_dense, 'scene_net')], (models.build, 'small_cnn')),
)
def test_bfloat16_computes_in_bfloat16_and_keeps_float32(build, name):
    """Parameters and logits are float32; products in between take bfloat16 on both sides."""
    rounded, exact = (build(name, 3, (16, 16, 3), convolution='native', dtype=d) for d in ('bfloat16', 'float32'))
    params = jax.jit(rounded.init)(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('float32')}
    x = jax.random.normal(jax.random.key(1), (2, 16, 16, 3))

    def logits(model, params):
        features, _ = model.bottom(params.bottom, x, None, True)
        return model.top(params.top, features, None, True)[0]

    got, expected = (jax.jit(partial(logits, model))(params) for model in (rounded, exact))
    assert got.dtype == jnp.float32
    error = jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected)
    assert 1e-5 < error < 0.1  # bfloat16 keeps 8 bits: 0.4 % a number
    text = jax.jit(partial(logits, rounded)).lower(params).as_text()
    products = [line for line in text.splitlines() if 'stablehlo.convolution' in line]
    assert products
    assert all('bf16' in line for line in products)


WIDTHS = {'cnn': {'channels': (16, 16), 'dense': 64}, 'wresnet28x2': {'channels': (8, 16, 24, 16), 'depth': 1}}
KAIMING = {'wresnet28x2': lambda fan_in, fan_out: (2 / fan_out) ** 0.5, 'resnet9_plain': lambda fan_in, _: fan_in**-0.5}


@pytest.mark.parametrize('name', ['cnn', 'resnet9', 'resnet9_plain', 'wresnet28x2'])
def test_first_weights_have_the_deviations_of_their_libraries(name):
    """Deviations: PyTorch's uniform 1 / sqrt(3 fan_in), Keras's 1 / sqrt(fan_in), Kaiming's sqrt(2 / fan_out)."""
    architecture = zoo.ARCHITECTURES[name](10, layers.FLOAT32, **WIDTHS.get(name, {'channels': (16,) * 4}))
    bottom, top, _ = jax.jit(models.cut(architecture, (32, 32, 3), None, 'none', 0).init)(jax.random.key(0))
    found = flax.traverse_util.flatten_dict(jax.device_get({**bottom['params'], **top['params']}))
    for path, leaf in found.items():
        if path[-1] == 'scale':
            assert np.all(leaf == 1)
        elif path[-1] == 'kernel':
            *spatial, inputs, outputs = leaf.shape
            fan_in, fan_out = np.prod(spatial) * inputs, np.prod(spatial) * outputs
            uniform = name not in KAIMING or (name == 'wresnet28x2' and 'dense' in path)
            expected = (3 * fan_in) ** -0.5 if uniform else KAIMING[name](fan_in, fan_out)
            assert np.std(leaf) == pytest.approx(expected, rel=4 / leaf.size**0.5), path
            bias = found.get((*path[:-1], 'bias'))
            if uniform and name != 'wresnet28x2':
                assert 0 < max(np.abs(leaf).max(), np.abs(bias).max()) <= fan_in**-0.5
            else:
                assert not np.any(bias) if 'dense' in path and name == 'wresnet28x2' else bias is None


@pytest.mark.parametrize(('shape', 'features'), [((28, 28, 1), 512), ((64, 64, 3), 2 * 2 * 512)])
def test_residual_models_of_other_sizes(shape, features):
    assert models.build('resnet9', 10, shape).feature_size == features
    assert models.build('wresnet28x2', 10, shape).feature_size == 128
