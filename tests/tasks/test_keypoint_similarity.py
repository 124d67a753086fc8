"""Object keypoint similarity by hand."""

import numpy as np

from semisfl_jax.tasks.keypoint_similarity import similarity


def test_similarity_by_hand():
    """Area 100, spread 0.1: k is 0.2, so that a distance of 2 costs exp(-4 / (2 * 100 * 0.04)) = exp(-0.5)."""
    truth = np.array([[1.0, 1], [5, 5], [9, 9]])
    joints = truth + [[0, 0], [2, 0], [7, 7]]
    visible = np.array([True, True, False])
    result = similarity(joints, truth, visible, 100, np.full(3, 0.1))
    np.testing.assert_allclose(result, (1 + np.exp(-0.5)) / 2)
    assert np.isnan(similarity(joints, truth, visible & False, 100, np.full(3, 0.1)))
