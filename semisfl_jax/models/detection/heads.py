"""A feature pyramid (Lin et al., 2017) and the heads of Mask R-CNN (Ren et al., 2015; He et al., 2017).

Layers, initial weights and the names of parameters are torchvision's, so that `detection.weights` finds them in a state
dict. Maps are [B, h, w, C], and all outputs of heads are float32.
"""

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import lecun_uniform, normal, zeros

from semisfl_jax.core.types import Array
from semisfl_jax.models.layers import FLOAT32, KAIMING_FAN_OUT, Compute, ConvLayer, DenseLayer, torch_uniform

WIDTH = 256  # channels of the pyramid and of the heads' convolutions


class FPN(nn.Module):
    """A feature pyramid: 1 x 1 convolutions, each map enlarged and added to the next finer one, 3 x 3 convolutions."""

    width: int = WIDTH
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, maps: Sequence[Array], train: bool) -> tuple[Array, ...]:
        """Maps C2 to C5, finest first, to P2 to P6 [B, h, w, width]; P6 is every second row and column of P5."""
        conv = partial(ConvLayer, self.width, activation=False, bias_init=zeros, compute=self.compute)
        conv = partial(conv, kernel_init=lecun_uniform())
        *finer, x = [conv(1, 0, name=f'inner_blocks_{i}')(x, train) for i, x in enumerate(maps)]
        merged = [x]
        for lateral in reversed(finer):
            merged.insert(0, lateral + enlarge(merged[0], *lateral.shape[1:3]))
        pyramid = [conv(3, 1, name=f'layer_blocks_{i}')(x, train) for i, x in enumerate(merged)]
        return (*pyramid, pyramid[-1][:, ::2, ::2])


def enlarge(x: Array, height: int, width: int) -> Array:
    """Repeats rows and columns of x [B, h, w, C]; row i is row i * h // height, as in PyTorch's `interpolate`."""
    rows, columns = (jnp.arange(new) * old // new for new, old in ((height, x.shape[1]), (width, x.shape[2])))
    return x[:, rows][:, :, columns]


class RPNHead(nn.Module):
    """Predicts at each place of every map whether there are objects, and their boxes relative to the anchors."""

    anchors: int  # at each place
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, pyramid: Sequence[Array], train: bool) -> tuple[list[Array], list[Array]]:
        """Maps `pyramid` to logits [B, h * w * anchors] and offsets [B, h * w * anchors, 4] of each level."""
        conv = partial(ConvLayer, kernel_init=normal(0.01), bias_init=zeros, compute=self.compute)
        hidden = conv(pyramid[0].shape[-1], name='conv')
        cls_logits = conv(self.anchors, 1, 0, activation=False, name='cls_logits')
        bbox_pred = conv(4 * self.anchors, 1, 0, activation=False, name='bbox_pred')
        maps = [hidden(x, train) for x in pyramid]
        objectness = [cls_logits(x, train).astype(jnp.float32).reshape(x.shape[0], -1) for x in maps]
        return objectness, [bbox_pred(x, train).astype(jnp.float32).reshape(x.shape[0], -1, 4) for x in maps]


class BoxHead(nn.Module):
    """Predicts the classes of boxes and better boxes, one for each class, by two fully connected layers."""

    outputs: int  # classes, and 0 for background
    hidden: int = 1024
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, x: Array, train: bool) -> tuple[Array, Array]:
        """Maps features x [N, S, S, C] to logits [N, outputs] and offsets [N, outputs, 4]."""
        dense = partial(DenseLayer, compute=self.compute)
        x = x.transpose(0, 3, 1, 2)  # flattened channel by channel, as in torchvision
        for name in ('fc6', 'fc7'):
            x = dense(self.hidden, name=name)(x, train)
        logits = dense(self.outputs, activation=False, name='cls_score')(x, train)
        offsets = dense(4 * self.outputs, activation=False, name='bbox_pred')(x, train)
        return logits.astype(jnp.float32), offsets.astype(jnp.float32).reshape(-1, self.outputs, 4)


class MaskHead(nn.Module):
    """Predicts a mask for each class by four convolutions, a transposed one, which doubles the sides, and a 1 x 1."""

    outputs: int  # as in BoxHead
    width: int = WIDTH
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps features x [N, S, S, C] to logits [N, 2 * S, 2 * S, outputs]."""
        conv = partial(ConvLayer, kernel_init=KAIMING_FAN_OUT, compute=self.compute)
        for index in range(4):
            x = conv(self.width, bias_init=zeros, name=f'fcn_{index}')(x, train)
        x = nn.relu(Doubled(self.width, self.compute, name='conv5_mask')(x))
        return conv(self.outputs, 1, 0, activation=False, name='mask_fcn_logits')(x, train).astype(jnp.float32)


class Doubled(nn.Module):
    """A transposed 2 x 2 convolution with stride 2: every pixel becomes four, each by a matrix of its own."""

    features: int
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps x [N, h, w, C] to [N, 2 * h, 2 * w, features]."""
        n, h, w, c = x.shape
        kernel = self.param('kernel', KAIMING_FAN_OUT, (2, 2, self.features, c)).astype(x.dtype)
        bias = self.param('bias', torch_uniform(4 * self.features), (self.features,)).astype(x.dtype)
        x = jnp.einsum('nhwc,yxfc->nhywxf', x, kernel)
        return x.reshape(n, 2 * h, 2 * w, self.features) + bias
