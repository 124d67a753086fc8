"""Layers of models for dense tasks against NumPy in float64: dilated convolutions, ResNets, ASPP, resizing."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import models
from semisfl_jax.models import lowerings
from semisfl_jax.models.dense_zoo import ASPP, DeepLabV3Plus, ResNet
from semisfl_jax.models.layers import resize
from tests import dense_twin

DILATED = [(3, 2, 1, 2), (3, 4, 1, 4), (3, 0, 1, 2), (3, 2, 2, 2), (5, 3, 1, 2), (3, 12, 1, 12)]


def drawn(variables, seed=0):
    """Statistics and scales unlike those that a network starts with."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        low = {'mean': -0.5, 'var': 0.5, 'scale': 0.5, 'bias': -0.5}.get(path[-1].key)
        return leaf if low is None else jnp.asarray(rng.uniform(low, low + 1, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, variables)


@pytest.mark.parametrize('lowering', sorted(lowerings.LOWERINGS))
@pytest.mark.parametrize(('size', 'padding', 'stride', 'dilation'), DILATED)
def test_dilated_convolutions_and_their_gradients(lowering, size, padding, stride, dilation):
    """Gradients are sums over positions, too. At a dilation beyond the map, only the kernel's center is left."""
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 9, 8, 3)), rng.normal(size=(size, size, 3, 4))
    function = partial(lowerings.LOWERINGS[lowering], padding=padding, stride=stride, dilation=dilation)
    got, back = jax.vjp(function, jnp.float32(x), jnp.float32(kernel))
    expected = dense_twin.convolve(x, kernel.transpose(3, 2, 0, 1), stride, padding, dilation)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)

    cotangent = rng.normal(size=expected.shape)
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    of_padded, of_kernel = np.zeros_like(padded), np.zeros_like(kernel)
    for i, j, m, n in itertools.product(*(range(length) for length in expected.shape[1:3]), range(size), range(size)):
        pixel = np.s_[:, stride * i + dilation * m, stride * j + dilation * n]
        of_padded[pixel] += cotangent[:, i, j] @ kernel[m, n].T
        of_kernel[m, n] += padded[pixel].T @ cotangent[:, i, j]
    of_x = of_padded[:, padding : padding + 9, padding : padding + 8]
    for gradient, wanted in zip(back(jnp.float32(cotangent)), (of_x, of_kernel), strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(('old', 'new'), [((2, 3), (8, 9)), ((4, 4), (7, 5)), ((6, 5), (3, 5)), ((1, 1), (4, 3))])
def test_bilinear_resizing(old, new):
    x = np.random.default_rng(0).normal(size=(2, *old, 3))
    np.testing.assert_allclose(resize(jnp.float32(x), *new), dense_twin.resize(x, *new), rtol=1e-5, atol=1e-5)


def test_bilinear_resizing_has_half_pixel_centers():
    """Two pixels, 0 and 1, at 1/4 and 3/4; four at 1/8, 3/8, 5/8 and 7/8, of which two lie between."""
    x = jnp.array([0.0, 1.0]).reshape(1, 1, 2, 1)
    np.testing.assert_allclose(resize(x, 1, 4).ravel(), [0.0, 0.25, 0.75, 1.0], atol=1e-6)


STEM, WIDTHS, DEPTHS = 4, (4, 6, 5, 3), (1, 2, 2, 2)
REPLACED = {32: (False, False, False), 16: (False, False, True), 8: (False, True, True)}


@pytest.mark.parametrize('output_stride', REPLACED)
@pytest.mark.parametrize('bottleneck', [False, True])
def test_resnet_is_that_of_torchvision(tmp_path, bottleneck, output_stride):
    """Its strides, dilations, pooling and names, at a fraction of its width; sides that no stride divides."""
    rng = np.random.default_rng(1)
    state = dense_twin.state_dict(rng, bottleneck, STEM, WIDTHS, DEPTHS)
    np.savez(tmp_path / 'state.npz', **state)
    encoder = ResNet(DEPTHS, bottleneck, output_stride, stem=STEM, widths=WIDTHS)
    images = rng.normal(size=(2, 37, 42, 3)).astype(np.float32)
    variables = models.load_encoder(
        str(tmp_path / 'state.npz'), encoder.lazy_init(jax.random.key(0), images, train=False)
    )
    maps = jax.jit(lambda variables, x: encoder.apply(variables, x, train=False))(variables, images)
    low, *_, last = dense_twin.resnet(state, images, bottleneck, REPLACED[output_stride])
    side = {8: (5, 6), 16: (3, 3), 32: (2, 2)}[output_stride]  # 37 and 42 divided by the stride, rounded up
    assert (maps[0].shape[1:3], maps[1].shape[1:3]) == ((10, 11), side)
    for got, expected in zip(maps, (low, last), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_aspp():
    rates = 1, 2, 7  # the last one beyond the map
    module = ASPP(rates, width=6)
    x = np.random.default_rng(2).normal(size=(2, 5, 4, 3)).astype(np.float32)
    variables = drawn(module.init(jax.random.key(0), x, train=False))
    expected = dense_twin.aspp(variables, (), x, rates)
    np.testing.assert_allclose(module.apply(variables, x, train=False), expected, rtol=1e-4, atol=1e-4)


def test_deeplabv3plus_to_the_size_of_the_images():
    """Encoder and decoder as a model: the logits at the images' size."""
    rates = 1, 2, 3
    encoder = ResNet(DEPTHS, True, 16, stem=STEM, widths=WIDTHS)
    model = models.encoder_decoder(encoder, DeepLabV3Plus(5, rates, width=6, low_width=3), (21, 26, 3))
    top = drawn(model.init(jax.random.key(0)).top)
    rng = np.random.default_rng(3)
    low, last = rng.normal(size=(2, 6, 7, 16)), rng.normal(size=(2, 2, 2, 12))  # 21 and 26 by 4 and by 16, rounded up
    got, same = jax.jit(lambda top, maps: model.top(top, maps, None, False))(top, (jnp.float32(low), jnp.float32(last)))
    assert jax.tree.all(jax.tree.map(np.array_equal, same, top))
    expected = dense_twin.deeplabv3plus(top, low, last, rates, 21, 26)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
