"""Decoders of tasks whose truths are objects: Mask R-CNN, Panoptic FPN, and associative embedding on a pyramid.

A decoder is called as decoder(maps, train) with the maps of an encoder, finest first, and returns predictions of fixed
shapes; with targets it returns its losses. Targets are dicts of arrays, `tasks.parts_of`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import normal

from semisfl_jax.base.errors import UserError
from semisfl_jax.core.types import Array
from semisfl_jax.models.detection import associative, heads, panoptic
from semisfl_jax.models.detection.mask_rcnn import MaskRCNN, Settings
from semisfl_jax.models.detection.proposals import Objects
from semisfl_jax.models.layers import FLOAT32, Compute, resize

VOID = 255  # in a target map: a pixel without truth
SEMANTIC_WEIGHT = 0.5  # of the semantic branch beside the losses of instances: for COCO, as in its paper
HEAT_START = 1e-3  # standard deviation of the weights from which heat maps and tags start
PEAKS = 30  # of each joint in an image, as in the code of associative embedding

Targets = Mapping[str, Array]


class Scale(NamedTuple):
    """How large decoders are; the defaults are those of the papers."""

    width: int = heads.WIDTH  # channels of the pyramid and of the mask head
    hidden: int = 1024  # of the box head
    branch: int = panoptic.WIDTH  # channels of the branch that joins the pyramid's levels
    settings: Settings = Settings()


def small(side: int) -> Scale:
    """Returns the scale for scenes with images of this side, whose pyramid has four levels."""
    settings = Settings(
        sizes=(side / 6, side / 4, side / 3, side / 2),
        anchors=64,
        proposals_train=(32, 24),
        proposals=(32, 24),
        samples=16,
        detections=10,
    )
    return Scale(32, 64, 32, settings)


class InstanceDecoder(nn.Module):
    """Mask R-CNN or, with `stuff`, Panoptic FPN.

    Predictions are the fields of `Detections` and, with stuff, 'semantic' [B, H, W] uint8: 0 .. `stuff` - 1 are classes
    of stuff, `stuff` is any thing.
    """

    model: MaskRCNN
    stuff: int = 0  # classes
    branch: int = panoptic.WIDTH

    @nn.compact
    def __call__(self, maps: Sequence[Array], train: bool, targets: Targets | None = None) -> dict[str, Array]:
        """Maps C2 to C5 [B, h, w, C] to predictions or, with targets, to losses []."""
        if (levels := len(maps) + 1) != (sizes := len(self.model.settings.sizes)):
            raise UserError(
                f'the encoder makes a pyramid of {levels} levels, but {sizes} have sizes of anchors; give each'
            )
        pyramid = self.model.fpn(maps, train)
        if targets is None:
            found = self.model.detections_on(pyramid)._asdict()
        else:
            found = self.model.losses_on(pyramid, objects_of(targets), self.make_rng('dropout'))
        if self.stuff:
            branch = panoptic.SemanticBranch(self.stuff + 1, self.branch, compute=self.model.compute, name='semantic')
            logits = branch(pyramid[:-1], train)
            if targets is None:
                found['semantic'] = jnp.argmax(resize(logits, *self.model.image), axis=-1).astype(jnp.uint8)
            else:
                found['semantic'] = SEMANTIC_WEIGHT * panoptic.semantic_loss(logits, targets['semantic'], VOID)
        return found


class PersonDecoder(nn.Module):
    """Associative embedding: heat maps and tags of joints on the sum of a pyramid's levels.

    Predictions are 'peaks' [B, J, PEAKS, 4]: x and y in pixels of the image, heat and tag.
    """

    joints: int
    image: tuple[int, int]  # height and width
    scale: Scale = Scale()
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, maps: Sequence[Array], train: bool, targets: Targets | None = None) -> dict[str, Array]:
        """Maps C2 to C5 [B, h, w, C] to predictions or, with targets, to losses []."""
        pyramid = heads.FPN(self.scale.width, self.compute, name='fpn')(maps, train)
        # A heat map starts near 0, as most of it is: gradients of larger errors would fill Adam's moments for long
        start = normal(HEAT_START)
        of_pixels = panoptic.SemanticBranch(2 * self.joints, self.scale.branch, self.compute, start, name='branch')
        outputs = of_pixels(pyramid[:-1], train)  # [B, h, w, 2 * J]
        height, width = outputs.shape[1:3]
        stride = jnp.array([self.image[1] / width, self.image[0] / height])  # of x and y
        if targets is None:
            found = jax.vmap(partial(associative.peaks, keep=min(PEAKS, height * width)))(outputs)
            return {'peaks': found.at[..., :2].set((found[..., :2] + 0.5) * stride - 0.5)}
        rows, columns = ((jnp.arange(n) + 0.5) * side // n for n, side in zip((height, width), self.image, strict=True))
        known = targets['known'][:, rows.astype(int)[:, None], columns.astype(int)] > 0
        joints = (targets['joints'] + 0.5) / stride - 0.5
        of_image = partial(associative.losses, sigma=associative.SIGMA * height / associative.SIDE)
        parts = jax.vmap(of_image)(outputs, joints, targets['visible'] > 0, known)
        return jax.tree.map(jnp.mean, parts)


def objects_of(targets: Targets) -> Objects:
    """Reads the objects of a batch from the targets of instances, whose masks are packed bits and cover the boxes."""
    boxes, labels, masks = targets['boxes'], targets['labels'], jnp.unpackbits(targets['masks'], axis=-1)
    return Objects(boxes, labels.astype(jnp.int32), masks, labels > 0, frames=boxes)


def _instances(outputs: int, stuff: int, image: tuple[int, int], scale: Scale, compute: Compute) -> nn.Module:
    return InstanceDecoder(
        MaskRCNN(outputs - stuff, image, scale.settings, scale.width, scale.hidden, compute), stuff, scale.branch
    )


def _persons(outputs: int, stuff: int, image: tuple[int, int], scale: Scale, compute: Compute) -> nn.Module:
    return PersonDecoder(outputs, image, scale, compute)


# Task -> (outputs, how many of them are stuff, height and width of images, scale, compute) -> the decoder
DECODERS: dict[str, Callable[[int, int, tuple[int, int], Scale, Compute], Any]] = {
    'instances': _instances,
    'panoptic': _instances,
    'persons': _persons,
}
