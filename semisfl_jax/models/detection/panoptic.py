"""Panoptic FPN (Kirillov et al., Panoptic Feature Pyramid Networks, 2019): its semantic branch, and how it merges."""

from collections.abc import Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer, zeros

from semisfl_jax.core.types import Array
from semisfl_jax.models.layers import FLOAT32, KAIMING_FAN_OUT, Compute, ConvLayer, resize, unbiased_conv

WIDTH, GROUP = 128, 4  # channels, and how many of them are normalized together: 32 groups in the authors' code
LEAST, OVERLAP, STUFF_AREA = 0.5, 0.5, 4096  # of `merge`: for COCO, as in the authors' code


class SemanticBranch(nn.Module):
    """Brings all levels to the size of the finest and adds them, and predicts the class of each pixel from the sum.

    A level at twice the finest's stride takes one step, the next one two, and so on; a step is a 3 x 3 convolution,
    group normalization, ReLU, and bilinear enlargement by 2. The finest level has a step without enlargement.
    """

    outputs: int  # classes of stuff, and one for all things
    width: int = WIDTH
    compute: Compute = FLOAT32
    start: Initializer = KAIMING_FAN_OUT  # of the weights of the last layer

    @nn.compact
    def __call__(self, pyramid: Sequence[Array], train: bool) -> Array:
        """Maps P2 to P5 [B, h, w, C], finest first, to logits [B, h of the first, w of the first, outputs]."""
        conv = partial(unbiased_conv, self.width, 3, norm=False, activation=False, compute=self.compute)
        # Of one channel each, groups would lose its mean: what the whole image shows
        norm = partial(nn.GroupNorm, None, group_size=GROUP, epsilon=1e-5, dtype=self.compute.dtype)
        total = jnp.zeros((), pyramid[0].dtype)
        for level, x in enumerate(pyramid):
            for step in range(max(level, 1)):
                x = conv(name=f'conv{level}_{step}')(x, train)
                x = norm(name=f'norm{level}_{step}')(x)
                x = nn.relu(x)
                if level:
                    x = resize(x, *pyramid[level - step - 1].shape[1:3])
            total = total + x
        head = partial(ConvLayer, self.outputs, 1, 0, activation=False, compute=self.compute, name='head')
        return head(kernel_init=self.start, bias_init=zeros)(total, train).astype(jnp.float32)


def semantic_loss(logits: Array, targets: Array, ignored: int) -> Array:
    """Computes the cross-entropy of logits, enlarged to the targets, where these are not `ignored`; 0 if nowhere.

    Args:
      logits: [B, h, w, K].
      targets: [B, H, W] classes.
      ignored: what marks pixels without truth.
    """
    known = targets != ignored
    hot = jax.nn.one_hot(targets, logits.shape[-1])
    losses = -jnp.sum(hot * jax.nn.log_softmax(resize(logits, *targets.shape[1:])), axis=-1)
    return jnp.sum(losses * known) / jnp.maximum(jnp.sum(known), 1)


def merge(
    masks: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    stuff: np.ndarray,
    least: float = LEAST,
    overlap: float = OVERLAP,
    area: int = STUFF_AREA,
) -> tuple[np.ndarray, list[int]]:
    """Merges instances and classes of pixels so that every pixel has one segment at most (Kirillov et al., 2019, 4).

    Instances are laid down by score; one that has too few pixels left is dropped. Stuff fills what is free.

    Args:
      masks: [N, H, W] bool.
      scores: [N].
      labels: [N] classes of things.
      stuff: [H, W] classes of stuff, -1 where none is predicted ('things', or unknown).
      least: the score that an instance needs.
      overlap: the share of an instance's pixels that may be taken by better ones.
      area: the pixels that a class of stuff needs.

    Returns:
      Segments [H, W] int32, 0 where there is none, and the class of segment 1, 2, …
    """
    segments, classes = np.zeros(stuff.shape, np.int32), []
    for index in np.argsort(-scores, kind='stable'):
        free = masks[index] & (segments == 0)
        if scores[index] >= least and (1 - overlap) * masks[index].sum() <= free.sum() > 0:
            classes.append(int(labels[index]))
            segments[free] = len(classes)
    things = segments > 0
    for label in np.unique(stuff[~things & (stuff >= 0)]):
        free = (stuff == label) & ~things
        if free.sum() >= area:
            classes.append(int(label))
            segments[free] = len(classes)
    return segments, classes
