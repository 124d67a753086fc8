"""Losses by hand, and beside torchvision on the same samples."""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.models.detection import losses, roi_align
from tests.helpers.detection import as_torch, some_boxes, torchvision, whole_frames


def test_losses_by_hand():
    """With beta = 1/9: an error of 0.1 costs 0.01 * 9 / 2, one of 1 costs 1 - 1/18; logits of 0 cost log 2."""
    zeros, two = jnp.zeros((3, 4)), np.log(2)
    offsets = zeros.at[0, :2].set(jnp.array([0.1, -1])).at[1].set(7)  # only the first sample is positive
    positive, there = jnp.array([True, False, False]), jnp.array([True, True, False])
    parts = losses.anchor_losses(jnp.zeros(3), offsets, zeros, positive, there)
    np.testing.assert_allclose(parts['objectness'], (2 * two, 2), rtol=1e-6)
    np.testing.assert_allclose(parts['anchors'], (0.045 + 17 / 18, 2), rtol=1e-5)
    labels = jnp.array([2, 0, 1])
    by_class = jnp.full((3, 3, 4), 9.0).at[0, 2].set(offsets[0])
    parts = losses.box_losses(jnp.zeros((3, 3)), by_class, zeros, labels, there)
    np.testing.assert_allclose(parts['classes'], (2 * np.log(3), 2), rtol=1e-6)
    np.testing.assert_allclose(parts['boxes'], (0.045 + 17 / 18, 2), rtol=1e-5)
    logits = jnp.full((3, 2, 2, 3), 50.0).at[0, ..., 2].set(0)
    parts = losses.mask_losses(logits, jnp.ones((3, 2, 2)), jnp.array([2, 0, 0]))
    np.testing.assert_allclose(parts['masks'], (two, 1), rtol=1e-6)
    means = losses.means({'masks': (jnp.array([2.0, 4.0]), jnp.array([1, 2])), 'none': (jnp.zeros(2), jnp.zeros(2))})
    assert jax.tree.map(float, means) == {'masks': 2, 'none': 0}


def test_losses_of_the_same_samples_are_those_of_torchvision():
    detection = torchvision()
    import torch
    from torchvision.models.detection import roi_heads

    rng = np.random.default_rng(0)
    count, there = 24, np.arange(24) < 20
    labels = np.where(np.arange(count) < 6, rng.integers(1, 4, count), 0)
    logits, offsets = rng.normal(size=(count, 4)), rng.normal(size=(count, 4, 4))
    targets = offsets[:, 2] + 0.3 * rng.normal(size=(count, 4))
    logits, offsets, targets = (x.astype(np.float32) for x in (logits, offsets, targets))

    def ours(parts):
        return [total / number for total, number in parts.values()]

    expected = roi_heads.fastrcnn_loss(
        as_torch(logits[there]), as_torch(offsets[there].reshape(20, -1)), [as_torch(labels[there])],
        [as_torch(targets[there])],
    )  # fmt: skip
    np.testing.assert_allclose(ours(losses.box_losses(logits, offsets, targets, labels, there)), expected, rtol=1e-5)

    class Fixed(detection.rpn.RegionProposalNetwork):
        def __init__(self):
            torch.nn.Module.__init__(self)
            self.fg_bg_sampler = lambda labels: ([labels[0] == 1], [labels[0] == 0])

    of_anchors = np.where(there, labels > 0, -1).astype(np.float32)  # -1: not drawn
    expected = Fixed().compute_loss(
        as_torch(logits[:, 0]), as_torch(offsets[:, 0]), [as_torch(of_anchors)], [as_torch(targets)]
    )
    parts = losses.anchor_losses(logits[:, 0], offsets[:, 0], targets, labels > 0, there)
    np.testing.assert_allclose(ours(parts), expected, rtol=1e-5)

    masks = (rng.uniform(size=(3, 64, 96)) < 0.5).astype(np.uint8)
    found = np.concatenate([some_boxes(5), [[0, 0, 96, 64]]]).astype(np.float32)
    of_objects, index = np.array([1, 3, 2]), np.array([0, 1, 2, 2, 1, 0])
    of_masks = rng.normal(size=(6, 28, 28, 4)).astype(np.float32)
    expected = roi_heads.maskrcnn_loss(
        as_torch(of_masks.transpose(0, 3, 1, 2)), [as_torch(found)], [as_torch(masks)], [as_torch(of_objects)],
        [as_torch(index)],
    )  # fmt: skip
    cropped = roi_align.crop(masks, whole_frames(masks), index, found, 28)
    np.testing.assert_allclose(ours(losses.mask_losses(of_masks, cropped, of_objects[index])), [expected], rtol=1e-5)
