"""Maps: resized as Pillow does, and their borders."""

import numpy as np
import pytest
from PIL import Image

from semisfl_jax.data import maps


@pytest.mark.parametrize(('source', 'target'), [((8, 8), (14, 26)), ((28, 24), (14, 19)), ((5, 7), (5, 7))])
def test_smooth_resizing_is_pillows_to_a_level(source, target):
    values = np.random.default_rng(0).integers(0, 256, (*source, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(values).resize(target[::-1], Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(maps.smooth(values, *target).astype(int) - expected).max() <= 1
    np.testing.assert_array_equal(maps.smooth(values, *target)[..., 1], maps.smooth(values[..., 1], *target))


@pytest.mark.parametrize('size', [3, 8, 13, 16])
def test_nearest_resizing_is_pillows(size):
    values = np.random.default_rng(0).integers(0, 256, (8, 13), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(values).resize((size, size), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(maps.nearest(values, size, size), expected)


def test_borders_of_a_small_map():
    regions = np.array([[1, 1, 2], [1, 1, 2], [3, 3, 3]])
    np.testing.assert_array_equal(maps.borders(regions), [[0, 1, 0], [1, 1, 1], [0, 0, 0]])
    known = regions != 2
    np.testing.assert_array_equal(maps.known_borders(regions, known), [[0, 255, 255], [1, 255, 255], [0, 0, 0]])
    turned = maps.known_borders(regions.T, known.T)  # rows as columns: neighbors below are those at the right
    np.testing.assert_array_equal(turned.T, maps.known_borders(regions, known))
