"""Matches and samples by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.models.detection import matching


def test_objects_are_matched_by_hand():
    """Overlaps with the only object [0, 4]^2: 1, 0.5 (4 x 2), 0.25 (2 x 2), 0."""
    found = jnp.array([[0, 0, 4, 4], [0, 0, 4, 2], [0, 0, 2, 2], [8, 8, 9, 9]], jnp.float32)
    objects, valid = jnp.array([[0, 0, 4, 4], [0, 0, 0, 0]], jnp.float32), jnp.array([True, False])
    between, background = matching.BETWEEN, matching.BACKGROUND
    assert matching.match(objects, valid, found, 0.3, 0.7, False).tolist() == [0, between, background, background]
    assert matching.match(objects, valid, found[2:], 0.3, 0.7, True).tolist() == [0, background]
    assert matching.match(objects, valid & False, found, 0.3, 0.7, True).tolist() == [background] * 4


def test_samples_have_at_most_their_share_of_positive_boxes():
    positive, negative = jnp.arange(20) < 8, jnp.arange(20) >= 15  # 8 and 5
    chosen, there = matching.sample(jax.random.key(0), positive, negative, 8, 0.25)
    assert (np.asarray(chosen)[:2] < 8).all()
    assert there.sum() == 7  # 2 of 8, and 5
    assert sorted(np.asarray(chosen)[2:7].tolist()) == [15, 16, 17, 18, 19]
    chosen, there = matching.sample(jax.random.key(0), positive, negative, 4, 0.5)
    assert there.all()
    assert len({*np.asarray(chosen).tolist()}) == 4
