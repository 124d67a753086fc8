"""Mask R-CNN (He et al., 2017) on the maps of an encoder: its training loss and its predictions, of fixed shapes.

C2 to C5 are the maps of `models.resnet.ResNet` with maps=(2, 3, 4, 5):

    model = MaskRCNN(classes=80, image=(800, 1088))
    variables = model.init(key, maps)
    losses = model.apply(variables, maps, objects, key, method='losses')  # their sum is minimized
    detections = model.apply(variables, maps)
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.rng import fold
from semisfl_jax.core.types import Array
from semisfl_jax.models.detection import losses
from semisfl_jax.models.detection.boxes import anchors
from semisfl_jax.models.detection.heads import FPN, WIDTH, BoxHead, MaskHead, RPNHead
from semisfl_jax.models.detection.proposals import Objects, detect, propose, sample_anchors, sample_proposals
from semisfl_jax.models.detection.roi_align import crop, levels_of, roi_align
from semisfl_jax.models.layers import FLOAT32, Compute

BOX_BINS, MASK_BINS = 7, 14  # along each side, of the features of a box


class Settings(NamedTuple):
    """Numbers of Mask R-CNN; the defaults are torchvision's."""

    sizes: tuple[float, ...] = (32, 64, 128, 256, 512)  # sides of anchors in pixels, for P2 to P6
    ratios: tuple[float, ...] = (0.5, 1, 2)  # height / width of anchors
    anchor_overlaps: tuple[float, float] = (0.3, 0.7)  # below: background; from there on: an object
    anchors: int = 256  # that an image learns from
    positive_anchors: float = 0.5  # their largest share
    proposals_train: tuple[int, int] = (2000, 2000)  # before suppression, for each level, and after it, of all
    proposals: tuple[int, int] = (1000, 1000)  # likewise in predictions
    suppress_proposals: float = 0.7  # overlap of a level's proposals above which the worse one goes
    overlap: float = 0.5  # of a proposal with an object, from which it belongs to it
    samples: int = 512  # proposals that an image learns from
    positive_samples: float = 0.25  # their largest share
    least: float = 0.05  # probability that a detection has to exceed
    suppress: float = 0.5  # overlap of a class's detections above which the worse one goes
    detections: int = 100  # of an image, at most


class Detections(NamedTuple):
    """What was found in each image, best first."""

    boxes: Array  # [B, K, 4]
    scores: Array  # [B, K], probabilities
    labels: Array  # [B, K], classes from 1 on
    masks: Array  # [B, K, 28, 28], probabilities within the boxes; `paste` puts them into the image
    valid: Array  # [B, K] bool, which detections there are


class MaskRCNN(nn.Module):
    """The parts of Mask R-CNN behind the encoder; parameters have names like torchvision's."""

    classes: int  # without the background
    image: tuple[int, int]  # height and width
    settings: Settings = Settings()
    width: int = WIDTH
    hidden: int = 1024  # of the box head
    compute: Compute = FLOAT32

    def setup(self) -> None:
        """Makes the pyramid and the heads."""
        self.fpn = FPN(self.width, self.compute)
        self.rpn = RPNHead(len(self.settings.ratios), self.compute)
        self.box = BoxHead(self.classes + 1, self.hidden, self.compute)
        self.mask = MaskHead(self.classes + 1, self.width, self.compute)

    def __call__(self, maps: Sequence[Array], sizes: Array | None = None) -> Detections:
        """Detects objects.

        Args:
          maps: [B, h, w, C] of the encoder, finest first.
          sizes: [B, 2], heights and widths of the pictures within the images; None: all of it.
        """
        return self.detections_on(self.fpn(maps, False), sizes)

    def detections_on(self, pyramid: Sequence[Array], sizes: Array | None = None) -> Detections:
        """Detects objects on the maps of `fpn`."""
        chosen, sizes = self.settings, self._sizes(pyramid, sizes)
        proposals, there = self._propose(pyramid, *self.rpn(pyramid, False), sizes, chosen.proposals)
        logits, offsets = self.box(self._features(pyramid, proposals, BOX_BINS), False)
        select = partial(detect, least=chosen.least, threshold=chosen.suppress, keep=chosen.detections)
        found = jax.vmap(select)(_split(logits, sizes), _split(offsets, sizes), proposals, there, sizes)
        boxes, scores, labels, valid = found
        masks = _split(self.mask(self._features(pyramid, boxes, MASK_BINS), False), sizes)
        own = jnp.take_along_axis(masks, labels[:, :, None, None, None], axis=-1)[..., 0]
        return Detections(boxes, scores, labels, jax.nn.sigmoid(own), valid)

    def losses(
        self, maps: Sequence[Array], objects: Objects, key: Array, sizes: Array | None = None
    ) -> dict[str, Array]:
        """Computes the five losses, [] each.

        Args:
          maps: [B, h, w, C] of the encoder, finest first.
          objects: of a batch.
          key: of the samples.
          sizes: as in `__call__`.
        """
        return self.losses_on(self.fpn(maps, True), objects, key, sizes)

    def losses_on(
        self, pyramid: Sequence[Array], objects: Objects, key: Array, sizes: Array | None = None
    ) -> dict[str, Array]:
        """Computes the losses on the maps of `fpn`."""
        chosen, sizes = self.settings, self._sizes(pyramid, sizes)
        of_anchors, of_proposals = (jax.random.split(fold(key, name), len(sizes)) for name in ('anchors', 'proposals'))
        objectness, moves = self.rpn(pyramid, True)
        fixed = jax.lax.stop_gradient((objectness, moves))
        proposals, there = self._propose(pyramid, *fixed, sizes, chosen.proposals_train)

        references = jnp.concatenate(self._anchors(pyramid))
        low, high = chosen.anchor_overlaps
        draw = partial(sample_anchors, low=low, high=high, count=chosen.anchors, share=chosen.positive_anchors)
        index, drawn = jax.vmap(draw, (0, None, 0))(of_anchors, references, objects)
        found = jnp.take_along_axis(jnp.concatenate(objectness, axis=1), index, axis=1)
        offsets = jnp.take_along_axis(jnp.concatenate(moves, axis=1), index[..., None], axis=1)
        parts = jax.vmap(losses.anchor_losses)(found, offsets, drawn.targets, drawn.labels > 0, drawn.there)

        choose = partial(sample_proposals, overlap=chosen.overlap, count=chosen.samples, share=chosen.positive_samples)
        drawn = jax.vmap(choose)(of_proposals, proposals, there, objects)
        logits, offsets = self.box(self._features(pyramid, drawn.boxes, BOX_BINS), True)
        logits, offsets = _split(logits, sizes), _split(offsets, sizes)
        parts |= jax.vmap(losses.box_losses)(logits, offsets, drawn.targets, drawn.labels, drawn.there)

        most = int(chosen.samples * chosen.positive_samples)  # positive samples come first
        boxes, labels = drawn.boxes[:, :most], drawn.labels[:, :most]
        cut = partial(crop, size=2 * MASK_BINS)
        targets = jax.vmap(cut)(objects.masks, objects.frames, drawn.objects[:, :most], boxes)
        masks = _split(self.mask(self._features(pyramid, boxes, MASK_BINS), True), sizes)
        return losses.means(parts | jax.vmap(losses.mask_losses)(masks, targets, labels))

    def _sizes(self, maps: Sequence[Array], sizes: Array | None) -> Array:
        return jnp.broadcast_to(jnp.array(self.image), (maps[0].shape[0], 2)) if sizes is None else sizes

    def _anchors(self, pyramid: Sequence[Array]) -> list[Array]:
        shapes = [(x.shape[1], x.shape[2]) for x in pyramid]
        levels = anchors(self.image, shapes, self.settings.sizes, self.settings.ratios)
        return [jnp.asarray(level) for level in levels]

    def _propose(
        self,
        pyramid: Sequence[Array],
        objectness: list[Array],
        offsets: list[Array],
        sizes: Array,
        counts: tuple[int, int],
    ) -> tuple[Array, Array]:
        """Returns proposals [B, N, 4] and [B, N] bool, which there are."""
        select = partial(propose, counts=counts, threshold=self.settings.suppress_proposals)
        return jax.vmap(select, in_axes=(0, 0, None, 0))(objectness, offsets, self._anchors(pyramid), sizes)

    def _features(self, pyramid: Sequence[Array], boxes: Array, bins: int) -> Array:
        """Reads boxes [B, N, 4] from all levels but the last: [B * N, bins, bins, C]."""
        maps = pyramid[:-1]
        powers = [round(math.log2(self.image[0] / x.shape[1])) for x in maps]

        def of_image(maps: Sequence[Array], boxes: Array) -> Array:
            levels = levels_of(boxes, powers[0], powers[-1]) - powers[0]
            return roi_align(maps, [2**power for power in powers], boxes, levels, bins)

        x = jax.vmap(of_image)(maps, boxes)
        return x.reshape(-1, *x.shape[2:])


def _split(x: Array, images: Array) -> Array:
    """Splits the boxes of all images, x [B * N, …], into [B, N, …]."""
    return x.reshape(images.shape[0], -1, *x.shape[1:])


def paste(masks: np.ndarray, boxes: np.ndarray, height: int, width: int) -> np.ndarray:
    """Puts masks into an image, on the host: resized bilinearly to their boxes, 0 outside, as torchvision does.

    Args:
      masks: [N, S, S] float32.
      boxes: [N, 4] in pixels of the image.
      height: of the image.
      width: of the image.

    Returns:
      [N, height, width] float32; a pixel belongs to an object if it is above 0.5.
    """
    size = masks.shape[1] + 2  # a border of zeros, so that masks fade beyond the centers of their outer elements
    padded = np.pad(masks, ((0, 0), (1, 1), (1, 1)))
    half = (boxes[:, 2:] - boxes[:, :2]) * np.float32(0.5)
    center = (boxes[:, 2:] + boxes[:, :2]) * np.float32(0.5)
    half *= np.float32(size / masks.shape[1])
    low, high = np.trunc(center - half), np.trunc(center + half)

    def weights(axis: int, length: int) -> np.ndarray:
        """Returns what each pixel takes of each element: [N, length, size]."""
        first, extent = low[:, axis, None], np.maximum(high[:, axis, None] - low[:, axis, None] + 1, 1)
        pixel = np.arange(length) - first
        at = np.clip((pixel + 0.5) * size / extent - 0.5, 0, size - 1)
        near = np.maximum(1 - np.abs(at[..., None] - np.arange(size)), 0)
        return (near * ((pixel >= 0) & (pixel < extent))[..., None]).astype(np.float32)

    return weights(1, height) @ padded @ weights(0, width).swapaxes(1, 2)
