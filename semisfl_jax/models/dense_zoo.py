"""Encoders and decoders for dense tasks, by name: DeepLab's and a small one.

The layers of DeepLabV3's decoder are torchvision's; V3+ adds the low-level map as Chen et al. (2018) describe it, with
ordinary instead of depthwise separable convolutions. Weights start as in PyTorch.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from semisfl_jax.base.errors import UserError
from semisfl_jax.core.types import Array
from semisfl_jax.models.detection.decoders import Scale, small
from semisfl_jax.models.layers import FLOAT32, Compute, ConvLayer, resize, unbiased_conv
from semisfl_jax.models.pooling import max_pool
from semisfl_jax.models.resnet import resnet

RATES = {8: (12, 24, 36), 16: (6, 12, 18), 32: (6, 12, 18)}  # output stride of the encoder -> dilations
WIDTH = 256
LOW_WIDTH = 48  # channels to which V3+ reduces the low-level map


class ASPP(nn.Module):
    """Joins a 1 x 1 convolution, dilated 3 x 3 convolutions and the mean over all pixels by a 1 x 1 convolution.

    In training, dropout zeroes half of its outputs.
    """

    rates: tuple[int, ...]
    width: int = WIDTH
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps x [B, h, w, c] to [B, h, w, width]."""
        layer = partial(unbiased_conv, self.width, kernel_init=None, compute=self.compute)
        parts = [layer(1, name='conv0')(x, train)]
        for index, rate in enumerate(self.rates, start=1):
            parts.append(layer(3, name=f'conv{index}', dilation=rate)(x, train))
        mean = jnp.mean(x, axis=(1, 2), keepdims=True, dtype=jnp.float32).astype(x.dtype)
        pooled = layer(1, name='pool')(mean, train)  # [B, 1, 1, width]
        parts.append(jnp.broadcast_to(pooled, parts[0].shape))
        return layer(1, name='project', dropout=0.5)(jnp.concatenate(parts, axis=-1), train)


class DeepLab(nn.Module):
    """DeepLabV3 or, with `low_width`, V3+.

    V3 applies ASPP to the last map, then a 3 x 3 and a 1 x 1 convolution; outputs have the last map's size. V3+ resizes
    ASPP of the last map to the low-level map and joins the two. Two 3 x 3 convolutions and a 1 x 1 convolution follow;
    outputs have the low-level map's size.
    """

    outputs: int
    rates: tuple[int, ...]
    low_width: int = 0  # channels to which V3+ reduces the low-level map; 0: V3
    width: int = WIDTH
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, maps: tuple[Array, ...], train: bool) -> Array:
        """Maps the last of `maps`, each [B, h, w, c], and in V3+ also the first, to [B, h, w, outputs]."""
        x = ASPP(self.rates, self.width, self.compute, name='aspp')(maps[-1], train)
        conv = partial(unbiased_conv, kernel_init=None, compute=self.compute)
        if self.low_width:
            low = conv(self.low_width, 1, name='low_level')(maps[0], train)
            x = jnp.concatenate([low, resize(x, *low.shape[1:3])], axis=-1)
        for name in ('conv1', 'conv2') if self.low_width else ('conv',):
            x = conv(self.width, 3, name=name)(x, train)
        return ConvLayer(self.outputs, 1, 0, activation=False, compute=self.compute, name='head')(x, train)


# --- a small encoder and decoder for scenes of about 48 x 48 pixels, fast on CPUs; not from a paper
#
# The encoder sends the maps of three levels: skip connections across the cut. The decoder is a feature pyramid (Lin et
# al., 2017): lateral 1 x 1 convolutions, and each map is resized to the next larger one and added to it.


class SceneEncoder(nn.Module):
    """Maps images to maps at strides 2, 4 and 8. It has 83,824 parameters for 3 channels."""

    stem: int = 16
    widths: tuple[int, int, int] = (32, 48, 64)
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, images: Array, train: bool) -> tuple[Array, Array, Array]:
        """Maps [B, H, W, C] to [B, H // 2, W // 2, 32], [B, H // 4, W // 4, 48] and [B, H // 8, W // 8, 64]."""
        layer = partial(unbiased_conv, kernel=3, compute=self.compute)
        first, second, third = self.widths
        x = layer(self.stem, name='stem', pool='floor')(images, train)
        fine = layer(first, name='level1')(x, train)
        middle = layer(second, name='level2')(max_pool(fine), train)
        x = layer(third, name='level3_0')(max_pool(middle), train)
        return fine, middle, layer(third, name='level3_1')(x, train)


class SceneDecoder(nn.Module):
    """Maps feature maps, finest first, to outputs at the size of the finest: 23,360 + 33 * outputs parameters."""

    outputs: int
    width: int = 32
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, maps: tuple[Array, ...], train: bool) -> Array:
        """Maps `maps`, each [B, h, w, c], to [B, h of the first, w of the first, outputs]."""
        layer = partial(unbiased_conv, self.width, compute=self.compute)
        *finer, coarsest = maps
        x = layer(1, name='lateral0')(coarsest, train)
        for index, skip in enumerate(reversed(finer), start=1):
            x = layer(1, name=f'lateral{index}')(skip, train) + resize(x, *skip.shape[1:3])
            x = layer(3, name=f'smooth{index}')(x, train)
        return ConvLayer(self.outputs, 1, 0, activation=False, compute=self.compute, name='head')(x, train)


class EncoderDecoder(NamedTuple):
    """The two modules of a model for dense tasks, and what tasks of objects have in their place."""

    encoder: nn.Module
    decoder: nn.Module
    # With the parameters of `encoder`, the maps of which `detection.decoders` makes a pyramid; None: there are none
    pyramid: nn.Module | None = None
    scale: Callable[[int], Scale] = small  # of these decoders, for images of a side


def scene_net(outputs: int, compute: Compute, output_stride: int) -> EncoderDecoder:
    """Builds the small model for scenes: 107,184 + 33 C parameters, about 32 MFLOP forward for 48x48x3.

    Args:
      outputs: C, numbers per pixel.
      compute: how layers compute.
      output_stride: 8.

    Raises:
      UserError: another output stride.
    """
    _check_stride('scene_net', output_stride, (8,))
    encoder = SceneEncoder(compute=compute)
    return EncoderDecoder(encoder, SceneDecoder(outputs, compute=compute), encoder)


def _deeplab(version: str, depth: int, outputs: int, compute: Compute, output_stride: int) -> EncoderDecoder:
    """Builds a DeepLab; only the last map crosses the cut in V3, the low-level map, too, in V3+.

    Decoders of objects get C2 to C5 without dilation, whatever the output stride.
    """
    _check_stride(f'deeplab{version}_resnet{depth}', output_stride, tuple(RATES))
    plus = version == 'v3plus'
    decoder = DeepLab(outputs, RATES[output_stride], LOW_WIDTH if plus else 0, compute=compute)
    encoder = resnet(depth, output_stride, maps=(2, 5) if plus else (5,), compute=compute)
    return EncoderDecoder(encoder, decoder, resnet(depth, 32, (2, 3, 4, 5), compute), lambda side: Scale())


def _check_stride(name: str, output_stride: int, strides: tuple[int, ...]) -> None:
    """Raises UserError unless the model `name` has the output stride."""
    if output_stride not in strides:
        allowed = ', '.join(map(str, strides))
        raise UserError(f"model.output_stride={output_stride} is not possible with model.name='{name}'; use {allowed}")


# name -> (outputs, compute, output stride) -> the two modules
DENSE_ARCHITECTURES: dict[str, Callable[[int, Compute, int], EncoderDecoder]] = {
    'scene_net': scene_net,
    'deeplabv3_resnet18': partial(_deeplab, 'v3', 18),
    'deeplabv3_resnet50': partial(_deeplab, 'v3', 50),
    'deeplabv3_resnet101': partial(_deeplab, 'v3', 101),
    'deeplabv3plus_resnet18': partial(_deeplab, 'v3plus', 18),
    'deeplabv3plus_resnet50': partial(_deeplab, 'v3plus', 50),
    'deeplabv3plus_resnet101': partial(_deeplab, 'v3plus', 101),
}
