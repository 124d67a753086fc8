"""Boxes from predictions, and samples to learn from, for one image (Ren et al., 2015); `jax.vmap` takes a batch."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax.core.types import Array
from semisfl_jax.models.detection import boxes, matching

SMALLEST_PROPOSAL, SMALLEST_DETECTION = 1e-3, 1e-2  # sides of boxes in pixels
CODING = (10, 10, 5, 5)  # weights of the offsets from a proposal to a detection


class Objects(NamedTuple):
    """The objects of an image, padded to G; a batch has a leading [B]."""

    boxes: Array  # [G, 4], of positive width and height where valid
    labels: Array  # [G] int32, classes from 1 on
    masks: Array  # [G, H, W], 0 or 1
    valid: Array  # [G] bool, which objects there are
    frames: Array  # [G, 4], the part of the image that each mask covers


class Samples(NamedTuple):
    """Boxes to learn from, positive ones first."""

    boxes: Array  # [K, 4]
    objects: Array  # [K], index of the object of a positive one
    labels: Array  # [K] int32, 0 for background
    targets: Array  # [K, 4], offsets to the object of a positive one
    there: Array  # [K] bool, which samples there are


def propose(
    objectness: Sequence[Array],
    offsets: Sequence[Array],
    anchors: Sequence[Array],
    size: Array,
    counts: tuple[int, int],
    threshold: float,
) -> tuple[Array, Array]:
    """Selects proposals: the best anchors of each level, without those that overlap better ones of the level.

    Args:
      objectness: [n] for each level.
      offsets: [n, 4] for each level.
      anchors: [n, 4] for each level.
      size: [2], height and width of the image.
      counts: how many at most before suppression, for each level, and after it, of all levels.
      threshold: of the suppression.

    Returns:
      Boxes [K, 4], best first, and [K] bool, which of them there are.
    """
    before, after = counts
    most = min(before, max(map(len, objectness)))
    levels = []
    for logits, of_level, references in zip(objectness, offsets, anchors, strict=True):
        scores, index = jax.lax.top_k(logits, min(before, len(logits)))
        found = boxes.clip(boxes.decode(of_level[index], references[index]), *size)
        lacking = most - len(index)
        padded = jnp.pad(found, ((0, lacking), (0, 0))), jnp.pad(scores, (0, lacking))
        levels.append((*padded, (jnp.arange(most) < len(index)) & (_sides(padded[0]) >= SMALLEST_PROPOSAL)))
    stacked, scores, valid = (jnp.stack(parts) for parts in zip(*levels, strict=True))
    found, _, _, there = _best(stacked, scores, valid, threshold, after)
    return found, there


def detect(
    logits: Array,
    offsets: Array,
    proposals: Array,
    there: Array,
    size: Array,
    least: float,
    threshold: float,
    keep: int,
) -> tuple[Array, Array, Array, Array]:
    """Selects detections: for each class, proposals that are probable and overlap no better one of the class.

    Args:
      logits: [N, C + 1].
      offsets: [N, C + 1, 4].
      proposals: [N, 4].
      there: [N] bool.
      size: [2], height and width of the image.
      least: the probability that a detection has to exceed.
      threshold: of the suppression.
      keep: K, how many at most.

    Returns:
      Boxes [K, 4], best first, probabilities [K], labels [K] from 1 on, and [K] bool, which of them there are.
    """
    scores = jax.nn.softmax(logits)[:, 1:].T  # [C, N]
    found = boxes.clip(boxes.decode(offsets[:, 1:], proposals[:, None], CODING), *size).swapaxes(0, 1)
    valid = there & (scores > least) & (_sides(found) >= SMALLEST_DETECTION)
    found, scores, classes, there = _best(found, scores, valid, threshold, keep)
    return found, jnp.where(there, scores, 0), classes + 1, there


def _sides(found: Array) -> Array:
    """Returns the shorter side of each box."""
    return jnp.min(found[..., 2:] - found[..., :2], axis=-1)


def _best(found: Array, scores: Array, valid: Array, threshold: float, keep: int) -> tuple[Array, Array, Array, Array]:
    """Suppresses boxes [R, N, 4] within each row and keeps the best of all rows.

    Returns boxes [K, 4], scores [K], rows [K], and [K] bool, which of them there are.
    """
    most = min(keep, found.shape[1])
    suppress = partial(boxes.suppress, threshold=threshold, keep=most)
    kept, stays = jax.vmap(suppress)(found, scores, jnp.zeros(scores.shape, int), valid)
    ranked = jnp.where(stays, jnp.take_along_axis(scores, kept, axis=1), -jnp.inf).reshape(-1)
    top, at = jax.lax.top_k(ranked, min(keep, len(ranked)))
    rows = at // most
    return found[rows, kept.reshape(-1)[at]], top, rows, top > -jnp.inf


def sample_anchors(
    key: Array, anchors: Array, objects: Objects, low: float, high: float, count: int, share: float
) -> tuple[Array, Samples]:
    """Draws anchors [K] to learn from; returns their indices, too. Labels are 1 for objects of any class."""
    matched = matching.match(objects.boxes, objects.valid, anchors, low, high, best=True)
    negative = matched == matching.BACKGROUND
    index, there = matching.sample(key, matched >= 0, negative, count, share)
    return index, _samples(anchors[index], matched[index], jnp.ones_like(objects.labels), there, objects, (1, 1, 1, 1))


def sample_proposals(
    key: Array, proposals: Array, there: Array, objects: Objects, overlap: float, count: int, share: float
) -> Samples:
    """Draws proposals [K] to learn from, to which the true boxes are added."""
    found = jnp.concatenate([proposals, objects.boxes])
    there = jnp.concatenate([there, objects.valid])
    matched = matching.match(objects.boxes, objects.valid, found, overlap, overlap, best=False)
    index, there = matching.sample(key, there & (matched >= 0), there & (matched < 0), count, share)
    return _samples(found[index], matched[index], objects.labels, there, objects, CODING)


def _samples(
    found: Array, matched: Array, labels: Array, there: Array, objects: Objects, weights: Sequence[float]
) -> Samples:
    positive = there & (matched >= 0)
    own = jnp.maximum(matched, 0)
    unit = jnp.array([0, 0, 1, 1], found.dtype)  # in place of boxes that may have no area
    true, references = (jnp.where(positive[:, None], x, unit) for x in (objects.boxes[own], found))
    return Samples(found, own, jnp.where(positive, labels[own], 0), boxes.encode(true, references, weights), there)
