"""The pyramid beside a twin in NumPy, and a doubled map by hand."""

import jax
import numpy as np

from semisfl_jax.models.detection import heads
from tests.helpers import convolution


def test_a_pyramid_adds_enlarged_maps():
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(1, *shape)).astype(np.float32) for shape in ((7, 5, 3), (4, 3, 2))]
    fpn = heads.FPN(4)
    variables = fpn.init(jax.random.key(0), maps, False)
    layers = jax.tree.map(np.asarray, variables['params'])

    def layer(name, x, padding):
        return convolution.convolve(x, layers[name]['kernel'], padding) + layers[name]['bias']

    coarse, fine = layer('inner_blocks_1', maps[1], 0), layer('inner_blocks_0', maps[0], 0)
    for i in range(7):
        for j in range(5):
            fine[:, i, j] += coarse[:, i * 4 // 7, j * 3 // 5]
    expected = [layer('layer_blocks_0', fine, 1), layer('layer_blocks_1', coarse, 1)]
    expected.append(expected[1][:, [0, 2]][:, :, [0, 2]])
    for ours, theirs in zip(fpn.apply(variables, maps, False), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_doubled_map_has_four_products_for_each_pixel():
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 5)).astype(np.float32)
    layer = heads.Doubled(4)
    variables = layer.init(jax.random.key(0), x)
    y = np.asarray(layer.apply(variables, x))
    kernel, bias = (np.asarray(variables['params'][name]) for name in ('kernel', 'bias'))
    assert y.shape == (2, 6, 4, 4)
    np.testing.assert_allclose(y[1, 5, 2], kernel[1, 0] @ x[1, 2, 1] + bias, atol=1e-5)
