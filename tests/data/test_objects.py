"""Masks on grids over their boxes, by hand."""

import numpy as np

from semisfl_jax.data import objects
from semisfl_jax.data.catalog import Known


def test_a_grid_has_the_pixels_under_the_centers_of_its_elements():
    mask = np.zeros((6, 10), np.uint8)
    mask[2:4, 3:7] = [[1, 0, 0, 1], [0, 1, 0, 0]]
    whole = np.unpackbits(objects.on_grid(mask, (3, 2, 7, 4), 8), axis=-1)
    np.testing.assert_array_equal(whole, np.kron(mask[2:4, 3:7], np.ones((4, 2), int)))
    # Centers at 4.8 + 1/4, 3/4, …, so at pixels 5, 5, 6, 6, 7, 7, 8, 8
    shifted = np.unpackbits(objects.on_grid(mask, (4.8, 2, 8.8, 4), 8), axis=-1)
    np.testing.assert_array_equal(shifted[[0, 7]], mask[[2, 3]][:, [5, 5, 6, 6, 7, 7, 8, 8]])
    beyond = np.unpackbits(objects.on_grid(np.ones((4, 4), np.uint8), (0, 0, 4.4, 4), 8), axis=-1)
    assert beyond.all(), 'the last pixel where the box leaves the picture'
    assert objects.on_grid(mask, (0, 0, 1, 1), 16).shape == (16, 2)


def test_what_pads_objects_is_zero():
    padded = objects.padded([(1, 2), (3, 4)], 3, (2,), np.float32)
    assert padded.dtype == np.float32
    assert padded.tolist() == [[1, 2], [3, 4], [0, 0]]
    assert objects.padded([], 2, (), np.uint8).tolist() == [0, 0]


def test_shapes_of_the_parts_of_all_tasks():
    outputs = {'semseg': 3, 'instances': 2, 'persons': 5}
    known = Known(1, 0, 1, (8, 8, 3), 2, outputs=outputs, objects={'instances': (4, 16), 'persons': (3, 0)})
    assert objects.shapes(known, 12) == {
        'instances.boxes': ((4, 4), np.float32),
        'instances.labels': ((4,), np.uint8),
        'instances.masks': ((4, 16, 2), np.uint8),
        'persons.joints': ((3, 5, 2), np.float32),
        'persons.visible': ((3, 5), np.uint8),
        'persons.known': ((12, 12), np.uint8),
    }
