"""Flips of objects by hand, and together with their images."""

import jax
import numpy as np
import pytest

from semisfl_jax.augment import AugmentOptions, together
from semisfl_jax.augment.objects import flip
from semisfl_jax.base.errors import UserError
from semisfl_jax.tasks.keypoint_similarity import SKELETONS


def test_boxes_and_packed_masks_by_hand():
    bits = np.zeros((2, 1, 2, 16), np.uint8)
    bits[:, 0, 0, :3] = bits[:, 0, 1, 9] = 1
    parts = {
        'boxes': np.array([[[2, 1, 10, 4]]] * 2, np.float32),
        'labels': np.array([[3]] * 2, np.uint8),
        'masks': np.packbits(bits, axis=-1),
        'semantic': np.arange(40, dtype=np.uint8).reshape(2, 1, 20),
    }
    result = jax.jit(flip, static_argnums=2)(parts, np.array([False, True]), 20)
    assert result['boxes'].tolist() == [[[2, 1, 10, 4]], [[10, 1, 18, 4]]]
    assert result['labels'].tolist() == [[3], [3]]
    assert {name: (x.shape, x.dtype) for name, x in result.items()} == {
        name: (x.shape, x.dtype) for name, x in parts.items()
    }
    unpacked = np.unpackbits(np.asarray(result['masks']), axis=-1)
    np.testing.assert_array_equal(unpacked[0], bits[0])
    assert np.argwhere(unpacked[1, 0]).tolist() == [[0, 13], [0, 14], [0, 15], [1, 6]]
    assert result['semantic'].tolist() == [[[*range(20)]], [[*range(39, 19, -1)]]]


def test_left_and_right_joints_change_places():
    """Pixel x becomes 7 - x; the leftmost and the rightmost of five joints, the third and fourth, are exchanged."""
    joints = np.array([[[[3, 0], [4, 7], [1, 5], [6, 2], [3, 3.5]]]], np.float32)
    visible, known = np.array([[[2, 2, 1, 0, 2]]], np.uint8), np.eye(8, dtype=np.uint8)[None]
    parts = {'joints': joints, 'visible': visible, 'known': known}
    result = flip(parts, np.array([True]), 8)
    assert result['joints'].tolist() == [[[[4, 0], [3, 7], [1, 2], [6, 5], [4, 3.5]]]]
    assert result['visible'].tolist() == [[[2, 2, 0, 1, 2]]]
    assert result['known'].tolist() == np.eye(8)[:, ::-1][None].tolist()
    again = flip(result, np.array([True]), 8)
    assert again['joints'].tolist() == joints.tolist()


NAMES = ('eye', 'ear', 'shoulder', 'elbow', 'wrist', 'hip', 'knee', 'ankle')


def test_the_joints_of_coco_have_sides():
    """COCO names them in this order; the left one of each pair stands first."""
    names = ['nose', *(f'{side} {name}' for name in NAMES for side in ('left', 'right'))]
    for joint, mirrored in enumerate(SKELETONS[17].mirrored):
        other = names[joint].replace('left', '*').replace('right', 'left').replace('*', 'right')
        assert names[mirrored] == other


def test_objects_stay_on_their_pixels():
    """Each image has one white pixel, which is all joints, in a box; about half of the images are flipped."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 16, (2, 32))
    images = np.zeros((32, 16, 16, 3), np.uint8)
    images[np.arange(32), y, x] = 255
    places = np.stack([x, y], axis=1).astype(np.float32)
    targets = {
        'instances': {'boxes': np.concatenate([places, places + 1], axis=1)[:, None]},
        'persons': {'joints': np.repeat(places[:, None, None], 5, axis=2)},
        'semseg': (images[..., 0] > 0).astype(np.uint8),
    }
    options = AugmentOptions(crop=0.0)
    moved, maps = jax.jit(together, static_argnums=3)(jax.random.key(0), images, targets, options)
    _, y_after, x_after = np.nonzero(np.asarray(moved)[..., 0])
    assert 8 < (x_after != x).sum() < 32
    after = np.stack([x_after, y_after], axis=1)
    np.testing.assert_array_equal(maps['instances']['boxes'][:, 0], np.concatenate([after, after + 1], axis=1))
    for joint in range(5):
        np.testing.assert_array_equal(maps['persons']['joints'][:, 0, joint], after)
    np.testing.assert_array_equal(maps['semseg'], np.asarray(moved)[..., 0] > 0)


@pytest.mark.parametrize('change', [{}, {'crop': 0.0, 'rotate': 10.0}, {'crop': 0.0, 'scale_max': 2.0}])
def test_objects_that_would_move_otherwise_are_refused(change):
    images, targets = np.zeros((1, 16, 16, 3), np.uint8), {'instances': {'boxes': np.zeros((1, 1, 4), np.float32)}}
    with pytest.raises(UserError, match=r"augment\..* task 'instances'"):
        together(jax.random.key(0), images, targets, AugmentOptions(**change))
