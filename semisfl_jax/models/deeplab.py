"""DeepLab's decoders: atrous spatial pyramid pooling (ASPP) and the heads of DeepLabV3 and DeepLabV3+.

The layers of DeepLabV3's decoder are torchvision's; V3+ adds the low-level map as Chen et al. (2018) describe it, with
ordinary instead of depthwise separable convolutions. Weights are initialized as in PyTorch.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from semisfl_jax.core.types import Array
from semisfl_jax.models.layers import FLOAT32, Compute, ConvLayer
from semisfl_jax.models.resizing import resize

RATES = {8: (12, 24, 36), 16: (6, 12, 18), 32: (6, 12, 18)}  # output stride of the encoder -> dilations
WIDTH = 256
LOW_WIDTH = 48  # channels to which V3+ reduces the low-level map


def _layer(
    features: int, kernel: int, compute: Compute, name: str, dilation: int = 1, dropout: float = 0.0
) -> ConvLayer:
    """Convolution without bias, BatchNorm, ReLU, dropout; the map keeps its size."""
    return ConvLayer(
        features,
        kernel=kernel,
        padding=dilation * (kernel // 2),
        dilation=dilation,
        bias=False,
        norm=True,
        dropout=dropout,
        compute=compute,
        name=name,
    )


class ASPP(nn.Module):
    """1 x 1 convolution, 3 x 3 convolutions at several dilations, and the mean over all pixels, side by side; a 1 x 1
    convolution joins them, and half of its numbers are dropped in training."""

    rates: tuple[int, ...]
    width: int = WIDTH
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """x [B, h, w, c] -> [B, h, w, width]."""
        layer = partial(_layer, self.width, compute=self.compute)
        parts = [layer(1, name='conv0')(x, train)]
        for index, rate in enumerate(self.rates, start=1):
            parts.append(layer(3, name=f'conv{index}', dilation=rate)(x, train))
        mean = jnp.mean(x, axis=(1, 2), keepdims=True, dtype=jnp.float32).astype(x.dtype)
        pooled = layer(1, name='pool')(mean, train)  # [B, 1, 1, width]
        parts.append(jnp.broadcast_to(pooled, parts[0].shape))
        return layer(1, name='project', dropout=0.5)(jnp.concatenate(parts, axis=-1), train)


class DeepLabV3(nn.Module):
    """ASPP of the last map, a 3 x 3 convolution and a 1 x 1 convolution to the outputs, at the last map's size."""

    outputs: int
    rates: tuple[int, ...]
    width: int = WIDTH
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, maps: tuple[Array, ...], train: bool) -> Array:
        """Maps [B, h, w, c], of which the last one is used -> [B, h, w, outputs]."""
        x = ASPP(self.rates, self.width, self.compute, name='aspp')(maps[-1], train)
        x = _layer(self.width, 3, self.compute, 'conv')(x, train)
        return to_outputs(self.outputs, self.compute)(x, train)


class DeepLabV3Plus(nn.Module):
    """ASPP of the last map, resized to the low-level map and joined with it, two 3 x 3 convolutions and a 1 x 1
    convolution to the outputs, at the low-level map's size."""

    outputs: int
    rates: tuple[int, ...]
    width: int = WIDTH
    low_width: int = LOW_WIDTH
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, maps: tuple[Array, Array], train: bool) -> Array:
        """(low-level map [B, h, w, c], last map) -> [B, h, w, outputs]."""
        low, last = maps
        x = ASPP(self.rates, self.width, self.compute, name='aspp')(last, train)
        low = _layer(self.low_width, 1, self.compute, 'low_level')(low, train)
        x = jnp.concatenate([low, resize(x, *low.shape[1:3])], axis=-1)
        for name in ('conv1', 'conv2'):
            x = _layer(self.width, 3, self.compute, name)(x, train)
        return to_outputs(self.outputs, self.compute)(x, train)


def to_outputs(outputs: int, compute: Compute) -> ConvLayer:
    """The last convolution of a decoder, 1 x 1 with bias."""
    return ConvLayer(outputs, kernel=1, padding=0, activation=False, compute=compute, name='head')
