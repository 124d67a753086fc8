"""The models for dense tasks, by name: encoder and decoder of a number of outputs for each pixel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn

from semisfl_jax.core.errors import UserError
from semisfl_jax.models.deeplab import RATES, DeepLabV3, DeepLabV3Plus
from semisfl_jax.models.layers import Compute
from semisfl_jax.models.resnet import OUTPUT_STRIDES, resnet
from semisfl_jax.models.scene_net import STRIDE, SceneDecoder, SceneEncoder


class EncoderDecoder(NamedTuple):
    """The two modules of a model for dense tasks, as `semisfl_jax.models.dense.encoder_decoder` takes them."""

    encoder: nn.Module
    decoder: nn.Module


def scene_net(outputs: int, compute: Compute, output_stride: int) -> EncoderDecoder:
    """107,184 + 33 C parameters for C outputs and about 32 MFLOP for an image of 48x48x3, forward."""
    _check_stride('scene_net', output_stride, (STRIDE,))
    return EncoderDecoder(SceneEncoder(compute=compute), SceneDecoder(outputs, compute=compute))


def _deeplabv3(depth: int, outputs: int, compute: Compute, output_stride: int) -> EncoderDecoder:
    """Nothing but the last map crosses the cut."""
    _check_stride(f'deeplabv3_resnet{depth}', output_stride, OUTPUT_STRIDES)
    encoder = resnet(depth, output_stride, low_level=False, compute=compute)
    return EncoderDecoder(encoder, DeepLabV3(outputs, RATES[output_stride], compute=compute))


def _deeplabv3plus(depth: int, outputs: int, compute: Compute, output_stride: int) -> EncoderDecoder:
    _check_stride(f'deeplabv3plus_resnet{depth}', output_stride, OUTPUT_STRIDES)
    encoder = resnet(depth, output_stride, low_level=True, compute=compute)
    return EncoderDecoder(encoder, DeepLabV3Plus(outputs, RATES[output_stride], compute=compute))


def _check_stride(name: str, output_stride: int, strides: tuple[int, ...]) -> None:
    if output_stride not in strides:
        allowed = ', '.join(str(stride) for stride in strides)
        raise UserError(f"model.output_stride={output_stride} is not possible with model.name='{name}'; use {allowed}")


# name -> (outputs, compute, output stride) -> the two modules
DENSE_ARCHITECTURES: dict[str, Callable[[int, Compute, int], EncoderDecoder]] = {
    'scene_net': scene_net,
    'deeplabv3_resnet18': partial(_deeplabv3, 18),
    'deeplabv3_resnet50': partial(_deeplabv3, 50),
    'deeplabv3_resnet101': partial(_deeplabv3, 101),
    'deeplabv3plus_resnet18': partial(_deeplabv3plus, 18),
    'deeplabv3plus_resnet50': partial(_deeplabv3plus, 50),
    'deeplabv3plus_resnet101': partial(_deeplabv3plus, 101),
}
