"""Views of images with maps: labels painted into an image come out of every view where the image's pixels do."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from configs import default
from semisfl_jax.augment import AugmentOptions, geometry, strong, together, variants, weak
from semisfl_jax.core import rng
from semisfl_jax.core.keys import choices_of
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


@pytest.mark.parametrize('name', choices_of(default.KEYS['augment.randaugment']))
def test_strong_views_start_with_the_turn(name):
    images, _ = painted()
    options = replace(OFF, randaugment=name)
    view = jax.jit(strong, static_argnums=2)
    np.testing.assert_array_equal(view(rng.root(5), images, options), images)
    turned = np.asarray(view(rng.root(5), images, replace(options, rotate=45.0, scale_min=0.5, scale_max=0.5)))
    black = (turned == 0).all(-1).mean((1, 2))  # at half the size, 3/4 are from outside
    np.testing.assert_allclose(black, 0.75, atol=0.03)


def test_ranges():
    """Uniform in scale_min .. scale_max and -rotate .. rotate."""
    uniform = jnp.array([[0.0, 0.5, 1.0], [0.0, 0.25, 1.0]])
    scale, angle = variants.draw_similarity(uniform, 0.75, 1.25, 20.0)
    np.testing.assert_allclose(scale, [0.75, 1, 1.25])
    np.testing.assert_allclose(angle, [-20, -10, 20])


def apply(move, image, scale, angle):
    """One image or map [H, W]."""
    planes = jnp.asarray(image)[None, None]
    return np.asarray(jax.jit(move)(planes, jnp.array([scale], jnp.float32), jnp.array([angle], jnp.float32)))[0, 0]


def test_half_the_size():
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


def test_keypoints_survive_shrinking():
    """At half the size, the nearest pixel would keep a quarter of the points."""
    points = np.zeros((4, 24, 30), np.uint8)
    points[:, ::4, ::5] = 1
    options = replace(OFF, scale_min=0.5, scale_max=0.5)
    images = np.zeros((4, 24, 30, 1), np.uint8)
    maps = both(rng.root(0), images, {'keypoints': points, 'edges': points}, options)[1]
    assert (np.asarray(maps['keypoints']) == 1).sum() == points.sum()
    assert (np.asarray(maps['edges']) == 1).sum() < 0.6 * points.sum()
