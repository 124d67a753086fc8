"""ResNet encoders (He et al., 2016), as in torchvision, without the classifier.

Parameters bear torchvision's names, so that `semisfl_jax.models.weights` finds them in a state dict.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn

from semisfl_jax.core.types import Array
from semisfl_jax.models.layers import FLOAT32, Compute, unbiased_conv

DEPTHS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}  # blocks of the four stages
EXPANSION = 4  # channels of a bottleneck block's output for each one inside
OUTPUT_STRIDES = (8, 16, 32)


class Block(nn.Module):
    """A residual block that ends in ReLU: two 3 x 3 convolutions, or a bottleneck of 1 x 1, 3 x 3 and 1 x 1.

    The stride is that of the first 3 x 3 convolution, in a bottleneck too (torchvision's version 1.5).
    """

    features: int  # of the 3 x 3 convolutions
    bottleneck: bool
    stride: int = 1
    first_dilation: int = 1  # of the first 3 x 3 convolution
    dilation: int = 1  # of the second
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """x [B, H, W, C] -> [B, H', W', features or 4 * features], H' = (H - 1) // stride + 1."""
        conv = partial(unbiased_conv, compute=self.compute)
        outputs = self.features * (EXPANSION if self.bottleneck else 1)
        if self.bottleneck:
            y = conv(self.features, 1, name='conv1')(x, train)
            y = conv(self.features, 3, self.stride, self.first_dilation, name='conv2')(y, train)
            y = conv(outputs, 1, activation=False, name='conv3')(y, train)
        else:
            y = conv(outputs, 3, self.stride, self.first_dilation, name='conv1')(x, train)
            y = conv(outputs, 3, 1, self.dilation, activation=False, name='conv2')(y, train)
        if x.shape[-1] != outputs or self.stride > 1:
            x = conv(outputs, 1, self.stride, activation=False, name='downsample')(x, train)
        return nn.relu(x.astype(y.dtype) + y)


class ResNet(nn.Module):
    """Images -> (map after the first stage, at stride 4, if `low_level`; last map, at `output_stride`).

    Below an output stride of 32, the last stages are dilated instead of strided. The first 3 x 3 convolution of such a
    stage keeps the dilation of the stage before, all others have twice that: in bottleneck blocks torchvision's
    `replace_stride_with_dilation`, and the same rule in ResNet-18, for which torchvision has none.
    """

    depths: tuple[int, ...]
    bottleneck: bool
    output_stride: int = 8
    low_level: bool = True
    stem: int = 64
    widths: tuple[int, ...] = (64, 128, 256, 512)  # `features` of the blocks of each stage
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, images: Array, train: bool) -> tuple[Array, ...]:
        """[B, H, W, C] -> [B, h, w, c] of each map; h is H divided by its stride, rounded up."""
        x = unbiased_conv(self.stem, 7, 2, compute=self.compute, name='conv1')(images, train)
        x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        total, dilation, low = 4, 1, x
        for stage, (depth, width) in enumerate(zip(self.depths, self.widths, strict=True), start=1):
            stride, before = 1, dilation
            if stage > 1 and total < self.output_stride:
                stride, total = 2, 2 * total
            elif stage > 1:
                dilation *= 2
            for index in range(depth):
                first = index == 0
                x = Block(
                    width,
                    self.bottleneck,
                    stride if first else 1,
                    before if first else dilation,
                    dilation,
                    compute=self.compute,
                    name=f'layer{stage}_{index}',
                )(x, train)
            low = x if stage == 1 else low
        return (low, x) if self.low_level else (x,)


def resnet(depth: int, output_stride: int, low_level: bool, compute: Compute) -> ResNet:
    """ResNet-18, -50 or -101: 11,176,512, 23,508,032 or 42,500,160 parameters for 3 channels."""
    return ResNet(DEPTHS[depth], depth >= 50, output_stride, low_level, compute=compute)
