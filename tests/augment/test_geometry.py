"""Views of images with maps: labels painted into an image come out of every view where the image's pixels do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from semisfl_jax.augment import geometry
from semisfl_jax.tasks import IGNORED


def apply(move, image, scale, angle):
    """One image or map [H, W]."""
    planes = jnp.asarray(image)[None, None]
    return np.asarray(jax.jit(move)(planes, jnp.array([scale], jnp.float32), jnp.array([angle], jnp.float32)))[0, 0]


def test_a_pixel_at_half_the_size_is_the_mean_of_four():
    """Each pixel is the mean of four, and the outer half is from outside."""
    image = np.random.default_rng(7).integers(0, 256, (8, 12), np.uint8)
    blocks = image.astype(int).reshape(4, 2, 6, 2).sum((1, 3))
    expected = np.pad((blocks + 2) // 4, ((2, 2), (3, 3)))
    np.testing.assert_array_equal(apply(geometry.scale_rotate, image, 0.5, 0), expected)
    maps = apply(geometry.scale_rotate_labels, np.full((8, 12), 5, np.uint8), 0.5, 0)
    np.testing.assert_array_equal(maps, np.pad(np.full((4, 6), 5), ((2, 2), (3, 3)), constant_values=IGNORED))


CASES = [(1.25, -13.0), (0.8, 160.0), (3.9, 40.0)]


@pytest.mark.parametrize(('scale', 'angle'), CASES)
def test_similarity_equals_scipy(scale, angle):
    """Within a gray level of the bilinear value in float64; the nearest pixel but for ties up to rounding."""
    height, width = 37, 52
    host = np.random.default_rng(8)
    image = scipy.ndimage.gaussian_filter(host.uniform(0, 255, (height, width)), 1).astype(np.uint8)
    turn = np.deg2rad(angle)
    matrix = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) / scale  # of (row, column)
    center = np.array([(height - 1) / 2, (width - 1) / 2])
    moved = functools.partial(scipy.ndimage.affine_transform, matrix=matrix, offset=center - matrix @ center)
    inside = moved(np.ones((height, width)), order=0, mode='grid-constant') > 0
    expected = moved(image.astype(float), order=1, mode='nearest')
    got = apply(geometry.scale_rotate, image, scale, angle)
    labels = host.integers(0, 200, (height, width), np.uint8)
    nearest = np.where(inside, moved(labels, order=0, mode='nearest'), IGNORED)
    got_labels = apply(geometry.scale_rotate_labels, labels, scale, angle)
    same = inside == (got_labels != IGNORED)
    assert same.mean() > 0.995
    assert np.abs(got.astype(float) - expected)[inside & same].max() <= 1
    assert (got[~inside & same] == 0).all()
    assert (got_labels == nearest).mean() > 0.995


@pytest.mark.parametrize(('scale', 'angle'), CASES)
def test_points_are_moved_one_by_one(scale, angle):
    host = np.random.default_rng(9)
    height, width = 40, 31
    points = np.zeros((height, width), np.uint8)
    places = host.permutation(height * width)[:25]
    points.reshape(-1)[places] = np.arange(1, 26)
    points[:2] = np.where(points[:2] > 0, points[:2], IGNORED)
    turn = np.deg2rad(angle)
    expected = apply(geometry.scale_rotate_labels, np.where(points == IGNORED, points, 0), scale, angle).copy()
    for number, place in enumerate(places, 1):
        y, x = np.divmod(place, width) - np.array([(height - 1) / 2, (width - 1) / 2])
        row = round((height - 1) / 2 + scale * (np.cos(turn) * y - np.sin(turn) * x))
        column = round((width - 1) / 2 + scale * (np.sin(turn) * y + np.cos(turn) * x))
        if 0 <= row < height and 0 <= column < width:
            expected[row, column] = number
    np.testing.assert_array_equal(apply(geometry.scale_rotate_points, points, scale, angle), expected)
