"""Associative embedding: losses by hand, and people who are found again in the maps that are true for them."""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.models.detection import associative

JOINTS = jnp.array([[[1.0, 2], [3, 2]], [[6, 5], [7, 1]], [[0, 0], [0, 0]]])
KNOWN = jnp.ones((7, 8), bool)
VISIBLE = jnp.array([[True, True], [True, False], [False, False]])


def test_heat_maps_by_hand():
    heat = np.asarray(associative.heat_maps(JOINTS, VISIBLE, 7, 8, 1))
    assert heat[2, 1, 0] == heat[5, 6, 0] == heat[2, 3, 1] == 1
    np.testing.assert_allclose(heat[3, 3, 0], np.exp(-(2**2 + 1) / 2), rtol=1e-5)
    assert heat[1, 7, 1] < 0.001  # not visible


def test_tags_of_a_person_attract_and_people_repel():
    """Person 0 has tags 1 and 3: mean 2, distances 1 and 1; person 1 has tag 4. exp(-(4 - 2)^2), two pairs of two."""
    outputs = jnp.concatenate([associative.heat_maps(JOINTS, VISIBLE, 7, 8, 1), jnp.zeros((7, 8, 2))], axis=-1)
    outputs = outputs.at[2, 1, 2].set(1).at[2, 3, 3].set(3).at[5, 6, 2].set(4)
    parts = associative.losses(outputs, JOINTS, VISIBLE, KNOWN, 1)
    assert parts['heat'] == 0
    np.testing.assert_allclose(parts['pull'], 1e-3 * (1 + 0) / 2, rtol=1e-5)
    np.testing.assert_allclose(parts['push'], 1e-3 * np.exp(-4) / 2, rtol=1e-5)
    other = associative.losses(outputs.at[0, 4, 0].add(2), JOINTS, VISIBLE, KNOWN.at[0, 4].set(False), 1)
    assert other['heat'] == 0
    nobody = associative.losses(outputs, JOINTS, VISIBLE & False, KNOWN)
    assert nobody['pull'] == nobody['push'] == 0
    gradient = jax.grad(lambda x: associative.losses(x, JOINTS, VISIBLE & False, KNOWN)['pull'])(outputs)
    assert np.isfinite(gradient).all()


def test_people_are_found_again():
    tags = jnp.zeros((7, 8, 2)).at[2, 1, 0].set(1).at[2, 3, 1].set(1.2).at[5, 6, 0].set(4)
    outputs = jnp.concatenate([associative.heat_maps(JOINTS, VISIBLE, 7, 8, 1), tags], axis=-1)
    people, scores = associative.group(np.asarray(associative.peaks(outputs, 4)), least=0.5)
    assert people[..., :2].tolist() == [[[1, 2], [3, 2]], [[6, 5], [0, 0]]]
    np.testing.assert_allclose(scores, [1, 0.5])


def test_the_pairs_with_the_smallest_sum_of_distances_are_taken():
    """Peaks with tags 1.4 and 0 of people with tags 0 and 3, which lie within 2 of them: (1.4, 3) and (0, 0)."""
    found = np.array([[[0, 0, 1, 0], [1, 0, 1, 3]], [[2, 0, 0.9, 1.4], [3, 0, 0.8, 0]]], float)
    people, _ = associative.group(found, same=2)
    assert people[:, 1, 0].tolist() == [3, 2]
    people, _ = associative.group(found, same=1)  # a peak at distance 1.4 starts a person
    assert people[:, 1, 0].tolist() == [3, 0, 2]
    people, _ = associative.group(found, same=2, order=(1, 0))
    assert people[:, 0, 0].tolist() == [1, 0]  # now tag 3 goes to 1.4, and 0 to 0
    assert associative.group(found, least=2.0)[0].shape == (0, 2, 3)
