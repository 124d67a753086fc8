"""Proposals and detections by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.models.detection import proposals


def test_proposals_by_hand():
    """Level 0 has three anchors, of which two go before suppression; level 1 has one, which is empty when clipped."""
    anchors = [jnp.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30]]), jnp.array([[70.0, 0, 80, 8]])]
    objectness = jnp.array([1.0, 3, 2]), jnp.array([9.0])
    offsets = jnp.zeros((3, 4)).at[2, 0].set(0.5), jnp.zeros((1, 4))
    select = jax.jit(proposals.propose, static_argnums=4)
    found, there = select(objectness, offsets, anchors, jnp.array([28, 64]), (3, 4), 0.7)
    assert np.asarray(found)[np.asarray(there)].tolist() == [
        [1, 0, 11, 10],
        [25, 20, 35, 28],
    ]  # the first overlaps 9/11
    _, there = select(objectness, offsets, anchors, jnp.array([28, 64]), (3, 4), 0.9)
    assert there.tolist() == [True] * 3 + [False]
    found, there = select(objectness, offsets, anchors, jnp.array([28, 90]), (1, 4), 0.9)
    assert np.asarray(found)[np.asarray(there)].tolist() == [[70, 0, 80, 8], [1, 0, 11, 10]]


def test_detections_by_hand():
    """Two classes, two proposals that overlap by 9/11: the better one of each class stays, if it is probable."""
    boxes = jnp.array([[0.0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10]])
    share = np.array([[0.2, 0.5, 0.3], [0.08, 0.9, 0.02], [0, 0, 1]])  # the last is not there
    there = jnp.array([True, True, False])
    found, scores, labels, valid = jax.jit(proposals.detect, static_argnums=7)(
        jnp.log(share), jnp.zeros((3, 3, 4)), boxes, there, jnp.array([20, 20]), 0.05, 0.5, 4
    )
    assert valid.tolist() == [True, True, False, False]
    assert found[:2].tolist() == [[1, 0, 11, 10], [0, 0, 10, 10]]
    assert labels[:2].tolist() == [1, 2]
    np.testing.assert_allclose(scores, [0.9, 0.3, 0, 0], rtol=1e-6)
