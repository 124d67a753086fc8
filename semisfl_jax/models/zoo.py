"""The models of the paper, as the authors' code builds them (facts 7), and a small one for small images.

A model is a tuple of layer makers, `name -> flax.linen.Module`, in order, and the number of layers that the paper
leaves at the client. Nothing else has to know its architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn

from semisfl_jax.models.layers import Compute, ConvLayer, DenseLayer

Maker = Callable[..., nn.Module]  # called as maker(name=…), and with axes=… if it has BatchNorm (layers.ConvLayer)


class Architecture(NamedTuple):
    """Layers of an uncut model."""

    layers: tuple[Maker, ...]
    paper_split: int  # layers at the client


def small_cnn(num_classes: int, compute: Compute) -> Architecture:
    """Two 3x3 convolutions (16, 32) and two dense layers (64, K), for images of 8x8 to 28x28; not in the paper."""
    conv = partial(ConvLayer, pool='floor', compute=compute)
    dense = partial(DenseLayer, 64, compute=compute)
    return Architecture((partial(conv, 16), partial(conv, 32), dense, _classifier(num_classes, compute)), paper_split=2)


def cnn(num_classes: int, compute: Compute) -> Architecture:
    """The paper's CNN for SVHN: 878,538 parameters at 32x32x3 and 10 classes."""
    conv = partial(ConvLayer, kernel=5, padding=0, pool='floor', compute=compute)
    dense = partial(DenseLayer, 512, compute=compute)
    return Architecture((partial(conv, 32), partial(conv, 64), dense, _classifier(num_classes, compute)), paper_split=2)


def alexnet(num_classes: int, compute: Compute) -> Architecture:
    """AlexNet for 32x32 images, all kernels 3x3 as in the authors' code: 35,855,178 parameters for 10 classes."""
    conv = partial(ConvLayer, compute=compute)
    return Architecture(
        (
            partial(conv, 64, pool='floor'),
            partial(conv, 192, pool='floor'),
            partial(conv, 384),
            partial(conv, 256),
            partial(conv, 256, pool='floor'),
            *_dense_head(num_classes, compute),
        ),
        paper_split=5,
    )


def vgg13(num_classes: int, compute: Compute) -> Architecture:
    """VGG13 with BatchNorm for 96x96 images: 45,111,626 parameters for 10 classes."""
    return _vgg((64, 64, 'P', 128, 128, 'P', 256, 256, 'P', 512, 512, 'P*', 512, 512, 'P'), num_classes, compute)


def vgg16(num_classes: int, compute: Compute) -> Architecture:
    """VGG16 with BatchNorm for 144x144 images: 84,347,044 parameters for 100 classes."""
    stages = (64, 64, 'P', 128, 128, 'P', 256, 256, 256, 'P', 512, 512, 512, 'P*', 512, 512, 512, 'P')
    return _vgg(stages, num_classes, compute)


def _vgg(stages: tuple[int | str, ...], num_classes: int, compute: Compute) -> Architecture:
    """`P` pools, `P*` pools after padding by one."""
    layers: list[Maker] = []
    for width, following in zip(stages, stages[1:] + (0,), strict=True):
        if isinstance(width, int):
            pool = {'P': 'floor', 'P*': 'pad'}.get(following, '')
            layers.append(partial(ConvLayer, width, norm=True, pool=pool, compute=compute))
    return Architecture((*layers, *_dense_head(num_classes, compute)), paper_split=len(layers))


def _classifier(num_classes: int, compute: Compute, dropout: float = 0.0) -> Maker:
    return partial(DenseLayer, num_classes, dropout=dropout, activation=False, compute=compute)


def _dense_head(num_classes: int, compute: Compute) -> tuple[Maker, ...]:
    """Dropout, 4096, dropout, 4096, classes: the head that AlexNet and the VGGs share."""
    wide = partial(DenseLayer, 4096, dropout=0.5, compute=compute)
    return wide, wide, _classifier(num_classes, compute)


ARCHITECTURES: dict[str, Callable[[int, Compute], Architecture]] = {
    'small_cnn': small_cnn,
    'cnn': cnn,
    'alexnet': alexnet,
    'vgg13': vgg13,
    'vgg16': vgg16,
}
