"""What FedMatch is made of, by hand: agreement, helpers, their divergence, the image of noise, what is sent."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.algorithms import fedmatch
from semisfl_jax.core import rng
from tests.fedmatch_twin import helpers_of


@pytest.mark.parametrize(
    ('label', 'votes', 'present', 'expected'),
    [
        (2, (0, 0), (True, True), 0),  # two against one
        (2, (0, 1), (True, True), 0),  # one vote each: the lowest
        (2, (2, 0), (True, True), 2),
        (2, (1, 0), (True, False), 1),  # one each of two: the lowest
        (2, (0, 0), (False, False), 2),  # nobody helps
        (1, (2, 2), (False, True), 1),
    ],
)
def test_agreement_label_by_hand(label, votes, present, expected):
    labels = fedmatch.vote(jnp.array([label, 1]), jnp.array([[vote, 1] for vote in votes]), jnp.array(present), 3)
    np.testing.assert_array_equal(labels, [expected, 1])


def test_helpers_are_the_nearest_known_others():
    """Against brute force, with equal embeddings and with fewer than asked for."""
    draw = np.random.default_rng(0)
    embeddings = draw.dirichlet(np.ones(3), 9).astype(np.float32)
    embeddings[7] = embeddings[4]
    for has_uploaded in (np.ones(9, bool), draw.random(9) < 0.6, np.arange(9) == 4, np.arange(9) >= 7):
        for client in range(9):
            ids, valid = fedmatch.nearest(jnp.array(embeddings), jnp.array(has_uploaded), jnp.int32(client), 3)
            expected = helpers_of(client, {n: embeddings[n] for n in np.flatnonzero(has_uploaded)}, 3)
            assert np.asarray(ids)[np.asarray(valid)].tolist() == expected
            assert client not in expected
            assert np.sum(valid) == (min(3, has_uploaded.sum() - 1) if has_uploaded[client] else 0)


def test_divergence_and_its_gradient_by_hand():
    """Mean over the helpers there of sum p_h log(p_h / p); by the client's logits, p - mean p_h."""
    draw = np.random.default_rng(1)
    helpers, logits = draw.normal(size=(3, 4, 5)), draw.normal(size=(4, 5))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (helpers, logits))
    for present in ([True, False, True], [False, False, False]):
        mean = np.array(present) / max(sum(present), 1)
        expected = np.tensordot(mean, np.sum(p * np.log(p / q), axis=-1), 1)
        value, pull = jax.vjp(
            lambda x, t=present: fedmatch.divergence_from_helpers(jnp.array(helpers), x, jnp.array(t)), logits
        )
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)
        gradient = any(present) * q - np.tensordot(mean, p, 1)
        np.testing.assert_allclose(pull(jnp.ones(4))[0], gradient, rtol=1e-4, atol=1e-6)


def test_the_image_of_noise():
    """A Gaussian of mean and deviation 125 between 0 and 255 has mean 125 + 125 (phi(1) - phi(1.04)) / (0.692...)."""
    pixels = np.asarray(fedmatch.noise(rng.root(0), (64, 64, 3)))
    assert pixels.dtype == np.uint8
    phi, cdf = (lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi)), (lambda x: math.erf(x / math.sqrt(2)) / 2)
    expected = 125 + 125 * (phi(1) - phi(1.04)) / (cdf(1.04) + cdf(1))
    assert pixels.mean() == pytest.approx(expected, abs=2.0)
    assert (pixels.min(), pixels.max()) == (0, 255)
    np.testing.assert_array_equal(pixels, fedmatch.noise(rng.root(0), (64, 64, 3)))


def test_what_hardly_changed_is_not_sent_by_hand():
    """More than an eighth from the received entry, where entries up to 1/16 are seen as 0; what is sent goes as is."""
    rows = (  # trained, received, arriving
        (0.7, 0.5, 0.7),
        (0.55, 0.5, 0.5),
        (0.125, 0.0, 0.0),  # by just an eighth
        (0.04, 0.3, 0.04),
        (0.04, 0.13, 0.04),  # seen as 0
        (0.04, 0.0, 0.0),
        (-0.07, 0.05, 0.05),
        (-0.2, -0.05, -0.2),
    )
    trained, received, expected = ([jnp.array(x[:3]), jnp.array(x[3:])] for x in zip(*rows, strict=True))
    sent, share = fedmatch.only_changes(trained, received, 0.125, 0.0625)
    chex.assert_trees_all_equal(sent, expected)
    assert float(share) == 4 / 8
    sent, share = fedmatch.only_changes(trained, received, 0.125)
    assert float(sent[1][1]) == np.float32(0.13)  # 0.04 is 0.09 away
    assert float(share) == 3 / 8
