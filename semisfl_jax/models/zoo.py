"""The models of the paper, as the authors' code builds them (docs/ledger.md), and of the methods compared with it.

There is also a small model for small images.

A model is a tuple of layer makers, `name -> flax.linen.Module`, in order, and the default number of layers at the
client. No other code depends on its architecture. Builders accept layer widths and stage depths, with the
model's own as defaults, so that tests can run every kind of layer at a fraction of its size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from semisfl_jax.models import resnet
from semisfl_jax.models.layers import Compute, ConvLayer, DenseLayer, PreactivationBlock, ResidualBlock, unbiased_conv

Maker = Callable[..., nn.Module]  # called as maker(name=…), also with axes=… if it has BatchNorm (field `norm` is true)


class Architecture(NamedTuple):
    """Layers of an uncut model."""

    layers: tuple[Maker, ...]
    paper_split: int  # layers at the client: the paper's choice; in models not in the paper, all but the dense layers
    names: tuple[str, ...] = ()  # of the layers, as in files of weights; (): layer_0, layer_1, …

    @property
    def named(self) -> tuple[tuple[str, Maker], ...]:
        """The layers with their names."""
        return tuple(
            zip(self.names or (f'layer_{index}' for index in range(len(self.layers))), self.layers, strict=True)
        )


def _two_convolutions(
    num_classes: int, compute: Compute, channels: tuple[int, ...] = (32, 64), dense: int = 512, **options: Any
) -> Architecture:
    """Builds two convolutions with `options` and pooling, and two dense layers."""
    conv = partial(ConvLayer, pool='floor', compute=compute, **options)
    first, second = (partial(conv, width) for width in channels)
    hidden = partial(DenseLayer, dense, compute=compute)
    return Architecture((first, second, hidden, _classifier(num_classes, compute)), paper_split=2)


def _alexnet(
    num_classes: int, compute: Compute, channels: tuple[int, ...] = (64, 192, 384, 256, 256), dense: int = 4096
) -> Architecture:
    """Builds AlexNet with 3x3 kernels, as in the authors' code.

    Dropout comes before each of the two wide layers: at the paper's cut, half of every feature gradient is zero.
    """
    pools = 'floor', 'floor', '', '', 'floor'
    layers = [
        partial(ConvLayer, width, pool=pool, compute=compute) for width, pool in zip(channels, pools, strict=True)
    ]
    wide = partial(DenseLayer, dense, dropout=0.5, compute=compute)
    return Architecture((*layers, wide, wide, _classifier(num_classes, compute)), paper_split=5)


def _vgg(
    num_classes: int,
    compute: Compute,
    channels: tuple[int, ...] = (64, 128, 256, 512, 512),
    dense: int = 4096,
    *,
    depths: tuple[int, ...],
) -> Architecture:
    """Builds five stages of `depths` convolutions, each ending in pooling, which pads the fourth by one first.

    Dropout comes after each of the two wide layers, not before as in AlexNet: no feature is dropped at the paper's cut.
    """
    layers: list[Maker] = []
    for depth, width, pool in zip(depths, channels, ('floor', 'floor', 'floor', 'pad', 'floor'), strict=True):
        conv = partial(ConvLayer, width, norm=True, compute=compute)
        layers += [*[conv] * (depth - 1), partial(conv, pool=pool)]
    wide = partial(DenseLayer, dense, compute=compute)
    head = wide, partial(wide, dropout=0.5), _classifier(num_classes, compute, dropout=0.5)
    return Architecture((*layers, *head), paper_split=len(layers))


def _resnet9(
    num_classes: int, compute: Compute, channels: tuple[int, ...] = (64, 128, 256, 512), **options: Any
) -> Architecture:
    """Builds a ResNet of seven layers for cutting; a residual block is one of them.

    A 4 x 4 max-pool ends the last block, so 32x32 images give 512 features; smaller maps are pooled globally, and
    images may be as small as 8x8.
    """
    conv = partial(ConvLayer, compute=compute, **options)
    block = partial(ResidualBlock, compute=compute, **options)
    classifier = _classifier(num_classes, compute, bias=options['bias'], kernel_init=options.get('kernel_init'))
    layers = (
        partial(conv, channels[0]),
        partial(conv, channels[1], pool='floor'),
        block,
        partial(conv, channels[2], pool='floor'),
        partial(conv, channels[3], pool='floor'),
        partial(block, pool=True),
        classifier,
    )
    return Architecture(layers, paper_split=6)


def _wresnet28x2(
    num_classes: int, compute: Compute, channels: tuple[int, ...] = (16, 32, 64, 128), depth: int = 4
) -> Architecture:
    """Builds three stages at any image size; SemiFL's code has a fourth for 96 pixels and only two for 28 pixels.

    There are fourteen layers for cutting: a convolution, twelve pre-activation blocks, the last of which ends in
    BatchNorm, ReLU and the mean over all pixels (128 features), and the classifier. Convolutions start by Kaiming's
    normal in fan_out mode, the classifier's bias at 0. SemiFL keeps no running statistics in training but recomputes
    them before evaluation: `semifl.recompute_statistics`.
    """
    block = partial(PreactivationBlock, compute=compute)
    layers: list[Maker] = [partial(unbiased_conv, channels[0], 3, norm=False, activation=False, compute=compute)]
    for width, stride in zip(channels[1:], (1, 2, 2), strict=True):
        layers += [partial(block, width, stride), *[partial(block, width)] * (depth - 1)]
    layers[-1] = partial(layers[-1], last=True)
    classifier = _classifier(num_classes, compute, bias_init=jax.nn.initializers.zeros)
    return Architecture((*layers, classifier), paper_split=len(layers))


def _resnet(
    num_classes: int,
    compute: Compute,
    depths: tuple[int, ...],
    *,
    bottleneck: bool,
    stem: int = resnet.WIDTHS[0],
    widths: tuple[int, ...] = resnet.WIDTHS,
) -> Architecture:
    """Builds a ResNet: a stem that depends on the size of the images, blocks, and the classifier.

    The last block ends in the mean over all pixels.
    """
    layers: dict[str, Maker] = {'conv1': partial(resnet.Stem, stem, compute=compute)}
    for blocks in resnet.stages(depths, widths, bottleneck, 32, compute):
        layers |= blocks
    name, block = layers.popitem()
    layers |= {name: partial(block, last=True), 'fc': _classifier(num_classes, compute)}
    return Architecture(tuple(layers.values()), paper_split=len(layers) - 1, names=tuple(layers))


def _mlp(num_classes: int, compute: Compute, dense: int, hidden: int = 1) -> Architecture:
    """Builds `hidden` layers of `dense` units, and the classifier."""
    layers = [partial(DenseLayer, dense, compute=compute)] * hidden
    return Architecture((*layers, _classifier(num_classes, compute)), paper_split=hidden)


def _cnn13(
    num_classes: int,
    compute: Compute,
    channels: tuple[int, ...] = (128, 256, 512, 256, 128),
    depths: tuple[int, ...] = (3, 3),
) -> Architecture:
    """Builds the CNN that Fed-SHVR names for CIFAR-10 without giving its layers.

    These are the usual ones since temporal ensembling (Laine and Aila, 2017) and mean teachers: two stages of three 3x3
    convolutions, each ending in max-pooling and dropout, then a 3x3 convolution without padding, two 1x1 convolutions
    and the mean over all pixels, with BatchNorm and LeakyReLU throughout. There are ten layers for cutting; images must
    have 12x12 pixels or more. At the default cut, dropout is in the clients' part.
    """
    conv = partial(ConvLayer, norm=True, negative_slope=0.1, compute=compute)
    layers: list[Maker] = []
    for width, depth in zip(channels, depths, strict=False):
        layers += [*[partial(conv, width)] * (depth - 1), partial(conv, width, pool='floor', dropout=0.5)]
    wide, narrow, narrowest = channels[len(depths) :]
    layers.append(partial(conv, wide, padding=0))
    layers.append(partial(conv, narrow, kernel=1, padding=0))
    layers.append(partial(conv, narrowest, kernel=1, padding=0, last=True))
    return Architecture((*layers, _classifier(num_classes, compute)), paper_split=len(layers))


def _classifier(num_classes: int, compute: Compute, **options: Any) -> Maker:
    return partial(DenseLayer, num_classes, activation=False, compute=compute, **options)


# Counts of parameters are for 10 classes and images of three channels, or of the stated size
ARCHITECTURES: dict[str, Callable[..., Architecture]] = {
    # For images of 8x8 to 28x28; not in the paper
    'small_cnn': partial(_two_convolutions, channels=(16, 32), dense=64),
    # The paper's CNN for SVHN: 878,538 parameters at 32x32x3
    'cnn': partial(_two_convolutions, kernel=5, padding=0),
    # The paper's AlexNet for 32x32 images: 35,855,178 parameters
    'alexnet': _alexnet,
    # The paper's VGG13 with BatchNorm for 96x96 images, and its VGG16 for 144x144: 45,111,626 parameters, and
    # 84,347,044 for 100 classes
    'vgg13': partial(_vgg, depths=(2, 2, 2, 2, 2)),
    'vgg16': partial(_vgg, depths=(2, 2, 3, 3, 3)),
    # FedDure's, with BatchNorm: 6,575,370 parameters. Pools 4x4 at the end from 32x32 on: pad smaller images
    'resnet9': partial(_resnet9, bias=True, norm=True),
    # FedMatch's, without BatchNorm and biases: 6,568,640 parameters. Weights (in FedMatch, those of sigma) start as in
    # Keras's VarianceScaling(): a truncated normal with standard deviation 1 / sqrt(fan_in)
    'resnet9_plain': partial(
        _resnet9,
        bias=False,
        norm=False,
        kernel_init=jax.nn.initializers.variance_scaling(1.0, 'fan_in', 'truncated_normal'),
    ),
    # WideResNet-28-2 as in SemiFL's code, for images of any size: 1,467,610 parameters
    'wresnet28x2': _wresnet28x2,
    # torchvision's: 11,181,642 and 23,528,522 parameters; below 64 pixels with a 3x3 stem: 11,173,962 and 23,520,842
    'resnet18': partial(_resnet, depths=resnet.DEPTHS[18], bottleneck=False),
    'resnet50': partial(_resnet, depths=resnet.DEPTHS[50], bottleneck=True),
    # Fed-SHVR's network for MNIST, 784-5000-10, and one for CPUs, not in a paper: 3,975,010 and 159,010 at 28x28x1
    'mlp5000': partial(_mlp, dense=5000),
    'mlp200': partial(_mlp, dense=200),
    # The thirteen-layer CNN of semi-supervised learning: 3,123,850 parameters
    'cnn13': _cnn13,
    # FedAvg's networks for MNIST (McMahan et al., 2017): 1,663,370 and 199,210 parameters at 28x28x1. The paper does
    # not say how weights start: here as in the other models
    'mcmahan_cnn': partial(_two_convolutions, kernel=5, padding=2),
    'mcmahan_2nn': partial(_mlp, dense=200, hidden=2),
}
