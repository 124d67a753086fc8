"""RoIAlign beside twins in plain Python."""

import jax
import numpy as np

from semisfl_jax.models.detection import roi_align
from tests.helpers.detection import bilinear, some_boxes, whole_frames


def test_roi_align_is_the_mean_of_four_samples_in_each_bin():
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(16, 12, 3)).astype(np.float32), rng.normal(size=(8, 6, 3)).astype(np.float32)]
    found = np.concatenate([some_boxes(6), [[-9.0, 50, 20, 90], [5, 5, 5.5, 6]]]).astype(np.float32)
    levels = np.array([0, 1, 0, 1, 0, 1, 0, 1])
    result = roi_align.roi_align(maps, (4, 8), found, levels, 3)
    for box, level, got in zip(found / np.array([4, 8])[levels][:, None], levels, result, strict=True):
        w, h = np.maximum(box[2:] - box[:2], 1)
        rows = box[1] + (np.arange(6) + 0.5) / 6 * h
        columns = box[0] + (np.arange(6) + 0.5) / 6 * w
        samples = np.array([[bilinear(maps[level], y, x) for x in columns] for y in rows])
        np.testing.assert_allclose(got, samples.reshape(3, 2, 3, 2, 3).mean(axis=(1, 3)), atol=1e-5)


def test_boxes_are_read_from_the_level_of_their_size():
    """A side of 224 is read from P4; half of it from P3, twice from P5 (Lin et al., 2017, Eq. 1)."""
    sides = np.array([1, 111, 112, 223, 224, 448, 5000], np.float32)
    found = np.stack([0 * sides, 0 * sides, sides, sides], axis=1)
    assert roi_align.levels_of(found, 2, 5).tolist() == [2, 2, 3, 3, 4, 5, 5]


def test_masks_are_cropped_by_the_mean_of_samples():
    """Twin in plain Python: as many samples along a bin as it has pixels, rounded up."""
    rng = np.random.default_rng(1)
    masks = (rng.uniform(size=(2, 40, 48)) < 0.5).astype(np.uint8)
    found = np.array([[3, 5, 4.5, 6], [0, 0, 48, 40], [10.5, 2.25, 40, 33]], np.float32)
    index = np.array([0, 1, 1])
    got = roi_align.crop(masks, whole_frames(masks), index, found, 5)
    for box, i, ours in zip(found, index, got, strict=True):
        w, h = np.maximum(box[2:] - box[:2], 1) / 5
        y, x = ((np.arange(count) + 0.5) / count for count in (int(np.ceil(h)), int(np.ceil(w))))
        for row in range(5):
            for column in range(5):
                of_bin = [
                    bilinear(masks[i].astype(float), box[1] + (row + a) * h, box[0] + (column + b) * w)
                    for a in y
                    for b in x
                ]
                np.testing.assert_allclose(ours[row, column], np.mean(of_bin), atol=1e-4)


def test_masks_that_cover_a_part_of_the_image():
    """A mask whose elements are pixels of its frame equals the mask of the image; one of half as many, its halves."""
    rng = np.random.default_rng(2)
    part = (rng.uniform(size=(1, 16, 24)) < 0.5).astype(np.float32)
    whole = np.zeros((1, 48, 48), np.float32)
    whole[0, 10:26, 6:30] = part[0]
    frame, index = np.array([[6, 10, 30, 26]], np.float32), np.zeros(2, int)
    inside = np.array([[7, 11, 29, 25], [9.5, 12.25, 20, 19]], np.float32)  # away from the border, where both differ
    crop = jax.jit(roi_align.crop, static_argnums=4)
    expected = crop(whole, whole_frames(whole), index, inside, 8)
    np.testing.assert_allclose(crop(part, frame, index, inside, 8), expected, atol=1e-5)
    # The mean of a bin of 4 pixels of a ramp is its value at pixel 10, 14, …; elements are 2 pixels wide, from 6 on
    ramp, wide = np.arange(24) * np.ones((1, 16, 1), np.float32), np.array([[6, 10, 54, 42]], np.float32)
    half = crop(ramp.astype(np.float32), wide, index, np.array([[8, 12, 40, 28]] * 2, np.float32), 8)[0]
    np.testing.assert_allclose(half, (np.arange(10, 42, 4) + 0.5 - 6) / 2 - 0.5 * np.ones((8, 1)), atol=1e-5)
    beyond = crop(np.ones_like(part), frame, index, np.array([[0, 0, 48, 48]] * 2, np.float32), 8)[
        0
    ]  # bins of 6 pixels
    np.testing.assert_allclose(beyond[2:4, 1:5], 1, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(beyond)[[0, 5, 6, 7]], 0)
    np.testing.assert_array_equal(beyond[:, 6:], 0)
