"""What the views draw: operations, magnitudes, places; and that they stay what they were."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax.augment import AugmentOptions, strong, variants, weak
from semisfl_jax.core import rng
from tests.binomial import near


@pytest.mark.parametrize('magnitude', [10, 4])
def test_draws_of_randaugment(magnitude):
    total = 40_000
    drawn = variants.draw_half(jax.random.uniform(rng.root(0), (4, total)), variants.mc(magnitude))
    op, v, sign, applied = (np.asarray(array) for array in drawn)
    assert op.min() == 0
    assert op.max() == 13
    assert (v.min(), v.max()) == (1, magnitude - 1)
    assert set(sign) == {-1, 1}
    assert all(near(n, 1 / 14, total) for n in np.bincount(op))
    assert all(near(n, 1 / (magnitude - 1), total) for n in np.bincount(v)[1:])
    assert near((sign > 0).sum(), 0.5, total)
    assert near(applied.sum(), 0.5, total)
    # the four are drawn independently of each other
    assert near((applied & (sign > 0)).sum(), 0.25, total)
    assert near((applied & (op == 7) & (v == 2)).sum(), 0.5 / 14 / (magnitude - 1), total)


def test_draws_of_placement():
    total = 40_000
    uniform = jax.random.uniform(rng.root(1), (3, total))
    flip, top, left, pad = variants.draw_placement(uniform, (total, 3, 32, 40), True, 0.125)
    assert pad == (4, 5)
    assert near(int(flip.sum()), 0.5, total)
    assert all(near(n, 1 / 9, total) for n in np.bincount(top, minlength=9))
    assert all(near(n, 1 / 11, total) for n in np.bincount(left, minlength=11))
    center = np.asarray(variants.draw_center(uniform[:2], (total, 3, 32, 40)))
    assert center.min() >= 0
    assert (center.max(0) < (32, 40)).all()
    np.testing.assert_allclose(center.mean(0), (16, 20), atol=0.3)


def test_draws_stay_in_range_at_the_ends():
    last = np.nextafter(np.float32(1), np.float32(0))
    for end, expected in ((0.0, (0, 1, 1, True)), (last, (13, 9, -1, False))):
        drawn = variants.draw_half(jnp.full((4, 1), end, jnp.float32), variants.mc(10))
        assert tuple(array[0].item() for array in drawn) == expected


@pytest.mark.parametrize(
    ('view', 'shape', 'digest'),
    [
        (weak, (28, 28, 1), '35f5efc073c8b1b8'),
        (weak, (32, 32, 3), 'a533c15871df90ba'),
        (strong, (28, 28, 1), '84e47ae6c2166d8a'),
        (strong, (32, 32, 3), '72aa7686b945e8f3'),
    ],
)
def test_views_stay_what_they_were(view, shape, digest):
    """A record of earlier results, the draws included: a run of today is to repeat one of yesterday."""
    images = np.random.default_rng(11).integers(0, 256, (64, *shape), np.uint8)
    result = np.asarray(jax.jit(view, static_argnums=2)(rng.root(7), images, AugmentOptions()))
    assert hashlib.sha256(result.tobytes()).hexdigest()[:16] == digest
