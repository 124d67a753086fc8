"""Views of images with maps: labels painted into an image come out of every view where the image's pixels do."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
import scipy.ndimage

from semisfl_jax.augment import AugmentOptions, strong, together, weak
from semisfl_jax.config import schema
from semisfl_jax.core import rng
from semisfl_jax.tasks import IGNORED

PLAIN = AugmentOptions(operations=0, cutout=0)
TURNED = replace(PLAIN, scale_min=0.75, scale_max=1.25, rotate=20.0)
OFF = replace(PLAIN, flip=False, crop=0.0)
SHAPE = (16, 24, 32)
both, weak_view = jax.jit(together, static_argnums=3), jax.jit(weak, static_argnums=2)


@functools.cache
def painted():
    """Labels 1 .. 9 in blocks of 8 pixels, and images with them in channel 0."""
    host = np.random.default_rng(0)
    labels = np.kron(host.integers(1, 10, (16, 3, 4)), np.ones((1, 8, 8), int)).astype(np.uint8)
    images = host.integers(1, 256, (*SHAPE, 3), np.uint8)
    images[..., 0] = labels
    return images, labels


def test_labels_stay_on_their_pixels_when_scaled_and_turned():
    """Where all pixels around have one label, the bilinear image shows it; it is black just where there is no truth."""
    images, labels = painted()
    moved, maps = both(rng.root(2), images, {'semseg': labels}, TURNED)
    moved, labels = np.asarray(moved), np.asarray(maps['semseg'])
    np.testing.assert_array_equal((moved == 0).all(-1), labels == IGNORED)
    np.testing.assert_array_equal((moved == 0).any(-1), labels == IGNORED)
    size = (1, 5, 5)
    flat = scipy.ndimage.minimum_filter(labels, size) == scipy.ndimage.maximum_filter(labels, size)
    flat &= labels != IGNORED
    assert flat.mean() > 0.1
    np.testing.assert_array_equal(moved[..., 0][flat], labels[flat])
    outside = (labels == IGNORED).mean((1, 2))
    assert outside.max() > 0.2  # a small one
    assert outside.min() < 0.05


def test_draws_of_flip_and_crop_do_not_depend_on_the_turn():
    """A turn by a millionth of a degree moves no pixel."""
    images, _ = painted()
    still, turned = (weak_view(rng.root(4), images, replace(PLAIN, rotate=rotate)) for rotate in (0.0, 1e-6))
    np.testing.assert_array_equal(still, turned)


@pytest.mark.parametrize('name', schema.KEYS['augment.randaugment'].metadata['choices'])
def test_strong_views_start_with_the_turn(name):
    images, _ = painted()
    options = replace(OFF, randaugment=name)
    view = jax.jit(strong, static_argnums=2)
    np.testing.assert_array_equal(view(rng.root(5), images, options), images)
    turned = np.asarray(view(rng.root(5), images, replace(options, rotate=45.0, scale_min=0.5, scale_max=0.5)))
    black = (turned == 0).all(-1).mean((1, 2))  # at half the size, 3/4 are from outside
    np.testing.assert_allclose(black, 0.75, atol=0.03)


def test_keypoints_survive_shrinking():
    """At half the size, the nearest pixel would keep a quarter of the points."""
    points = np.zeros((4, 24, 30), np.uint8)
    points[:, ::4, ::5] = 1
    options = replace(OFF, scale_min=0.5, scale_max=0.5)
    images = np.zeros((4, 24, 30, 1), np.uint8)
    maps = both(rng.root(0), images, {'keypoints': points, 'edges': points}, options)[1]
    assert (np.asarray(maps['keypoints']) == 1).sum() == points.sum()
    assert (np.asarray(maps['edges']) == 1).sum() < 0.6 * points.sum()
