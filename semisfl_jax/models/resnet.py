"""ResNets (He et al., 2016), as in torchvision: layers for classification, and encoders that return maps.

Layers and their parameters have torchvision's names, so that `semisfl_jax.models.weights` finds them in a state dict.
"""

from functools import partial

import flax.linen as nn

from semisfl_jax.core.types import Array
from semisfl_jax.models.layers import FLOAT32, Compute, mean_of_pixels, unbiased_conv

DEPTHS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}  # blocks of the four stages
WIDTHS = (64, 128, 256, 512)  # `features` of the blocks of each stage
EXPANSION = 4  # channels of a bottleneck block's output for each one inside
SMALL = 64  # images with a side below this have the stem for small images


class Stem(nn.Module):
    """The first convolution, with stride 2 and pooling, or for small images 3 x 3 without either.

    Small images have the stem that is usual for CIFAR: torchvision's would leave one pixel of 32 x 32 at the end.
    """

    features: int = WIDTHS[0]
    norm: bool = True
    compute: Compute = FLOAT32
    axes: tuple[str, ...] = ()  # as in ConvLayer

    @nn.compact
    def __call__(self, images: Array, train: bool) -> Array:
        """Maps [B, H, W, C] to [B, H, W, features] if H or W is below SMALL, else to [B, H / 4, W / 4, features]."""
        conv = partial(unbiased_conv, self.features, compute=self.compute, axes=self.axes, name=None)
        layer = conv(3) if min(images.shape[1:3]) < SMALL else conv(7, 2, pool='overlap')
        nn.share_scope(self, layer)  # parameters have one name for both
        return layer(images, train)


class Block(nn.Module):
    """A residual block that ends in ReLU: two 3 x 3 convolutions, or a bottleneck of 1 x 1, 3 x 3 and 1 x 1.

    The first 3 x 3 convolution has the stride, also in a bottleneck (torchvision's version 1.5).
    """

    features: int  # of the 3 x 3 convolutions
    bottleneck: bool
    stride: int = 1
    first_dilation: int = 1  # of the first 3 x 3 convolution, or a bottleneck's only one
    dilation: int = 1  # of the second 3 x 3 convolution
    last: bool = False  # last block of the network: the mean over all pixels follows
    norm: bool = True
    compute: Compute = FLOAT32
    axes: tuple[str, ...] = ()  # as in ConvLayer

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps x [B, H, W, C] to [B, H', W', F], H' = (H - 1) // stride + 1, or [B, F] if `last`.

        F is `features`, or EXPANSION times that in a bottleneck.
        """
        conv = partial(unbiased_conv, compute=self.compute, axes=self.axes)
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
        y = nn.relu(x.astype(y.dtype) + y)
        return mean_of_pixels(y) if self.last else y


def stages(
    depths: tuple[int, ...], widths: tuple[int, ...], bottleneck: bool, output_stride: int, compute: Compute
) -> list[dict[str, partial[Block]]]:
    """Returns the makers of the blocks of each stage, by name.

    Below an output stride of 32, the last stages are dilated instead of strided. The first 3 x 3 convolution of such a
    stage keeps the dilation of the stage before; all others double it. In bottleneck blocks this is torchvision's
    `replace_stride_with_dilation`; ResNet-18, for which torchvision has no rule, follows the same one.

    Args:
      depths: number of blocks.
      widths: `features` of the blocks.
      bottleneck: kind of the blocks.
      output_stride: stride of the last map, if the stem has a stride of 4.
      compute: how layers compute.
    """
    total, dilation, made = 4, 1, []
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True), start=1):
        stride, before = 1, dilation
        if stage > 1 and total < output_stride:
            stride, total = 2, 2 * total
        elif stage > 1:
            dilation *= 2
        block = partial(Block, width, bottleneck, dilation=dilation, compute=compute)
        blocks = [partial(block, stride=stride, first_dilation=before)]
        blocks += [partial(block, first_dilation=dilation)] * (depth - 1)
        made.append({f'layer{stage}_{index}': maker for index, maker in enumerate(blocks)})
    return made


class ResNet(nn.Module):
    """Maps images to maps after the stages, C2 to C5: at stride 4, 8, 16 and 32, or at `output_stride` where less."""

    depths: tuple[int, ...]
    bottleneck: bool
    output_stride: int = 8
    maps: tuple[int, ...] = (2, 5)  # those that are returned
    stem: int = WIDTHS[0]
    widths: tuple[int, ...] = WIDTHS
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, images: Array, train: bool) -> tuple[Array, ...]:
        """Maps images [B, H, W, C] to maps [B, h, w, c]; h is H divided by the map's stride, rounded up."""
        x = unbiased_conv(self.stem, 7, 2, compute=self.compute, name='conv1', pool='overlap')(images, train)
        after = []
        for blocks in stages(self.depths, self.widths, self.bottleneck, self.output_stride, self.compute):
            for name, block in blocks.items():
                x = block(name=name)(x, train)
            after.append(x)
        return tuple(after[index - 2] for index in self.maps)


def resnet(depth: int, output_stride: int, maps: tuple[int, ...], compute: Compute) -> ResNet:
    """Builds the encoder ResNet-18, -50 or -101: 11,176,512, 23,508,032 or 42,500,160 parameters for 3 channels.

    Args:
      depth: 18, 50 or 101.
      output_stride: stride of the last map.
      maps: those that are returned, of 2 to 5.
      compute: how layers compute.
    """
    return ResNet(DEPTHS[depth], depth >= 50, output_stride, maps, compute=compute)
