"""The layers of residual networks. A block, with both of its convolutions and its shortcut, counts as one layer when a
model is cut: a cut inside a block would have to send the shortcut along with the features."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array
from semisfl_jax.models.layers import FLOAT32, Compute, ConvLayer, batch_norm, mean_of_pixels
from semisfl_jax.models.pooling import max_pool

KAIMING_FAN_OUT = jax.nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')  # k x k kernel: k * k * features


class ResidualBlock(nn.Module):
    """x plus two ConvLayers of x, each ending in ReLU; no activation after the sum. Optional 4 x 4 max-pool."""

    bias: bool = True
    norm: bool = False
    pool: bool = False  # 4 x 4 max-pool; smaller maps are pooled globally
    kernel_init: Callable | None = None  # None: PyTorch's
    compute: Compute = FLOAT32
    axes: tuple[str, ...] = ()  # as in ConvLayer

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """x [B, H, W, C] -> the same shape, or [B, H // 4, W // 4, C] with `pool`."""
        y = x
        for name in ('conv_0', 'conv_1'):
            y = ConvLayer(
                x.shape[-1],
                bias=self.bias,
                norm=self.norm,
                kernel_init=self.kernel_init,
                compute=self.compute,
                axes=self.axes,
                name=name,
            )(y, train)
        y = x.astype(y.dtype) + y
        if not self.pool:
            return y
        return max_pool(max_pool(y)) if min(y.shape[1:3]) >= 4 else jnp.max(y, axis=(1, 2), keepdims=True)


class PreactivationBlock(nn.Module):
    """A block of a wide ResNet: BatchNorm, ReLU, 3 x 3 convolution, twice, without biases, plus a shortcut.

    If the number of channels changes, the shortcut is a 1 x 1 convolution of the first ReLU's output; otherwise, x.
    """

    features: int
    stride: int = 1  # of the first convolution and of the 1 x 1 shortcut
    last: bool = False  # last block of the network: BatchNorm, ReLU and the mean over all pixels follow
    norm: bool = True
    compute: Compute = FLOAT32
    axes: tuple[str, ...] = ()  # as in ConvLayer

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """x [B, H, W, C] -> [B, H', W', features], H' = (H - 1) // stride + 1, or [B, features] from the last block."""

        def normalized(x: Array, name: str) -> Array:
            return nn.relu(batch_norm(train, self.compute, self.axes, name)(x))

        def convolved(x: Array, stride: int, kernel: int, name: str) -> Array:
            return bare_convolution(self.features, kernel, stride, self.compute, name)(x, train)

        y = normalized(x, 'norm_0')
        if x.shape[-1] != self.features:
            x = convolved(y, self.stride, 1, 'shortcut')
        y = convolved(y, self.stride, 3, 'conv_0')
        y = x.astype(y.dtype) + convolved(normalized(y, 'norm_1'), 1, 3, 'conv_1')
        return mean_of_pixels(normalized(y, 'norm_2')) if self.last else y


def bare_convolution(features: int, kernel: int, stride: int, compute: Compute, name: str) -> ConvLayer:
    """A convolution without bias, normalization or activation, as in wide ResNets."""
    return ConvLayer(
        features,
        kernel=kernel,
        padding=kernel // 2,
        stride=stride,
        bias=False,
        activation=False,
        kernel_init=KAIMING_FAN_OUT,
        compute=compute,
        name=name,
    )
