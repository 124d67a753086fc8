"""The models of the paper, as the authors' code builds them (docs/ledger.md), those of the methods it is compared with,
and a small one for small images.

A model is a tuple of layer makers, `name -> flax.linen.Module`, in order, and the default number of layers at the
client. No other code depends on its architecture. Builders accept layer widths and stage depths, with the
model's own as defaults, so that tests can run every kind of layer at a fraction of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from semisfl_jax.models.layers import (
    Compute,
    ConvLayer,
    DenseLayer,
    PreactivationBlock,
    ResidualBlock,
    unbiased_conv,
)

Maker = Callable[..., nn.Module]  # called as maker(name=…), also with axes=… if it has BatchNorm (field `norm` is true)


class Architecture(NamedTuple):
    """Layers of an uncut model."""

    layers: tuple[Maker, ...]
    paper_split: int  # layers at the client: the paper's choice, or all but the dense layers in models not in the paper


def small_cnn(
    num_classes: int, compute: Compute, channels: tuple[int, ...] = (16, 32), dense: int = 64
) -> Architecture:
    """Two 3x3 convolutions (16, 32) and two dense layers (64, K), for images of 8x8 to 28x28; not in the paper."""
    conv = partial(ConvLayer, pool='floor', compute=compute)
    return _two_convolutions(conv, channels, dense, num_classes, compute)


def cnn(num_classes: int, compute: Compute, channels: tuple[int, ...] = (32, 64), dense: int = 512) -> Architecture:
    """The paper's CNN for SVHN: 878,538 parameters at 32x32x3 and 10 classes."""
    conv = partial(ConvLayer, kernel=5, padding=0, pool='floor', compute=compute)
    return _two_convolutions(conv, channels, dense, num_classes, compute)


def mcmahan_cnn(
    num_classes: int, compute: Compute, channels: tuple[int, ...] = (32, 64), dense: int = 512
) -> Architecture:
    """FedAvg's CNN for MNIST (McMahan et al., 2017): 1,663,370 parameters at 28x28x1 and 10 classes.

    Like `cnn`, with padded convolutions. The paper does not say how weights start: here as in the other models.
    """
    conv = partial(ConvLayer, kernel=5, padding=2, pool='floor', compute=compute)
    return _two_convolutions(conv, channels, dense, num_classes, compute)


def _two_convolutions(
    conv: Maker, channels: tuple[int, ...], dense: int, num_classes: int, compute: Compute
) -> Architecture:
    first, second = (partial(conv, width) for width in channels)
    hidden = partial(DenseLayer, dense, compute=compute)
    return Architecture((first, second, hidden, _classifier(num_classes, compute)), paper_split=2)


def alexnet(
    num_classes: int, compute: Compute, channels: tuple[int, ...] = (64, 192, 384, 256, 256), dense: int = 4096
) -> Architecture:
    """AlexNet for 32x32 images, all kernels 3x3 as in the authors' code: 35,855,178 parameters for 10 classes.

    Dropout comes before each of the two wide layers: at the paper's cut, half of every feature gradient is zero.
    """
    pools = 'floor', 'floor', '', '', 'floor'
    layers = [
        partial(ConvLayer, width, pool=pool, compute=compute) for width, pool in zip(channels, pools, strict=True)
    ]
    wide = partial(DenseLayer, dense, dropout=0.5, compute=compute)
    return Architecture((*layers, wide, wide, _classifier(num_classes, compute)), paper_split=5)


def vgg13(
    num_classes: int,
    compute: Compute,
    channels: tuple[int, ...] = (64, 128, 256, 512, 512),
    dense: int = 4096,
    depths: tuple[int, ...] = (2, 2, 2, 2, 2),
) -> Architecture:
    """VGG13 with BatchNorm for 96x96 images: 45,111,626 parameters for 10 classes."""
    return _vgg(depths, channels, dense, num_classes, compute)


def vgg16(
    num_classes: int,
    compute: Compute,
    channels: tuple[int, ...] = (64, 128, 256, 512, 512),
    dense: int = 4096,
    depths: tuple[int, ...] = (2, 2, 3, 3, 3),
) -> Architecture:
    """VGG16 with BatchNorm for 144x144 images: 84,347,044 parameters for 100 classes."""
    return _vgg(depths, channels, dense, num_classes, compute)


def _vgg(
    depths: tuple[int, ...], channels: tuple[int, ...], dense: int, num_classes: int, compute: Compute
) -> Architecture:
    """Five stages with the given numbers of convolutions, each ending in pooling; the fourth is padded by one first.

    Dropout comes after each of the two wide layers, not before as in AlexNet: no feature is dropped at the paper's
    cut.
    """
    layers: list[Maker] = []
    for depth, width, pool in zip(depths, channels, ('floor', 'floor', 'floor', 'pad', 'floor'), strict=True):
        conv = partial(ConvLayer, width, norm=True, compute=compute)
        layers += [*[conv] * (depth - 1), partial(conv, pool=pool)]
    wide = partial(DenseLayer, dense, compute=compute)
    head = wide, partial(wide, dropout=0.5), _classifier(num_classes, compute, dropout=0.5)
    return Architecture((*layers, *head), paper_split=len(layers))


def resnet9(num_classes: int, compute: Compute, channels: tuple[int, ...] = (64, 128, 256, 512)) -> Architecture:
    """FedDure's ResNet-9, with BatchNorm: 6,575,370 parameters at 32x32x3 and 10 classes.

    It pools 4x4 at the end only from 32x32 on: pad smaller images (`data.pad_to`).
    """
    return _resnet9(num_classes, compute, channels, bias=True, norm=True, kernel_init=None)


def resnet9_plain(num_classes: int, compute: Compute, channels: tuple[int, ...] = (64, 128, 256, 512)) -> Architecture:
    """FedMatch's ResNet-9, without BatchNorm and biases: 6,568,640 parameters at 32x32x3 and 10 classes.

    Weights (in FedMatch, those of sigma) are initialized like Keras's VarianceScaling(): a truncated normal with
    standard deviation 1 / sqrt(fan_in).
    """
    kernel_init = jax.nn.initializers.variance_scaling(1.0, 'fan_in', 'truncated_normal')
    return _resnet9(num_classes, compute, channels, bias=False, norm=False, kernel_init=kernel_init)


def _resnet9(num_classes: int, compute: Compute, channels: tuple[int, ...], **options: Any) -> Architecture:
    """Seven layers for cutting, where a residual block is one. A 4 x 4 max-pool ends the last block, so 32x32 images
    give 512 features; smaller maps are pooled globally, and images may be as small as 8x8."""
    conv = partial(ConvLayer, compute=compute, **options)
    block = partial(ResidualBlock, compute=compute, **options)
    classifier = _classifier(num_classes, compute, bias=options['bias'], kernel_init=options['kernel_init'])
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


def wresnet28x2(
    num_classes: int, compute: Compute, channels: tuple[int, ...] = (16, 32, 64, 128), depth: int = 4
) -> Architecture:
    """WideResNet-28-2 as in SemiFL's code: 1,467,610 parameters for 3 channels and 10 classes, images of any size.

    Three stages at any size; in SemiFL's code, images of 96 pixels get a fourth and those of 28 pixels two.

    Fourteen layers for cutting: a convolution, twelve pre-activation blocks, of which the last ends in BatchNorm, ReLU
    and the mean over all pixels (128 features), and the classifier. Convolutions are initialized with Kaiming's normal
    in fan_out mode, the classifier's bias with 0. SemiFL keeps no running statistics in training but recomputes them
    before evaluation: `semifl.recompute_statistics`.
    """
    block = partial(PreactivationBlock, compute=compute)
    layers: list[Maker] = [partial(unbiased_conv, channels[0], 3, norm=False, activation=False, compute=compute)]
    for width, stride in zip(channels[1:], (1, 2, 2), strict=True):
        layers += [partial(block, width, stride), *[partial(block, width)] * (depth - 1)]
    layers[-1] = partial(layers[-1], last=True)
    classifier = _classifier(num_classes, compute, bias_init=jax.nn.initializers.zeros)
    return Architecture((*layers, classifier), paper_split=len(layers))


def mlp5000(num_classes: int, compute: Compute, dense: int = 5000) -> Architecture:
    """Fed-SHVR's network for MNIST, 784-5000-10: 3,975,010 parameters at 28x28x1 and 10 classes, images of any size."""
    return _one_hidden_layer(dense, num_classes, compute)


def mlp200(num_classes: int, compute: Compute, dense: int = 200) -> Architecture:
    """`mlp5000` with 200 hidden units, for CPUs: 159,010 parameters at 28x28x1 and 10 classes; not in a paper."""
    return _one_hidden_layer(dense, num_classes, compute)


def mcmahan_2nn(num_classes: int, compute: Compute, dense: int = 200) -> Architecture:
    """FedAvg's MLP for MNIST, 784-200-200-10 (McMahan et al., 2017): 199,210 parameters at 28x28x1 and 10 classes."""
    hidden = partial(DenseLayer, dense, compute=compute)
    return Architecture((hidden, hidden, _classifier(num_classes, compute)), paper_split=2)


def _one_hidden_layer(dense: int, num_classes: int, compute: Compute) -> Architecture:
    return Architecture((partial(DenseLayer, dense, compute=compute), _classifier(num_classes, compute)), paper_split=1)


def cnn13(
    num_classes: int,
    compute: Compute,
    channels: tuple[int, ...] = (128, 256, 512, 256, 128),
    depths: tuple[int, ...] = (3, 3),
) -> Architecture:
    """The thirteen-layer CNN of semi-supervised learning: 3,123,850 parameters for 3 channels and 10 classes.

    Fed-SHVR names it for CIFAR-10 without its layers; these are the ones usual since temporal ensembling (Laine and
    Aila, 2017) and mean teachers: two stages of three 3x3 convolutions, each ending in max-pooling and dropout, then a
    3x3 convolution without padding, two 1x1 convolutions and the mean over all pixels, with BatchNorm and LeakyReLU
    throughout. Ten layers for cutting; images of 12x12 or more. At the default cut, dropout is in the clients' part.
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


ARCHITECTURES: dict[str, Callable[..., Architecture]] = {
    'small_cnn': small_cnn,
    'cnn': cnn,
    'alexnet': alexnet,
    'vgg13': vgg13,
    'vgg16': vgg16,
    'resnet9': resnet9,
    'resnet9_plain': resnet9_plain,
    'wresnet28x2': wresnet28x2,
    'mlp5000': mlp5000,
    'mlp200': mlp200,
    'cnn13': cnn13,
    'mcmahan_cnn': mcmahan_cnn,
    'mcmahan_2nn': mcmahan_2nn,
}
