"""Both forms of reading and counting, and views in the form for TPUs against the one for CPUs, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import augment
from semisfl_jax.augment import tables, variants
from semisfl_jax.core import machine

PLATFORMS = ('cpu', 'tpu')
VARIANTS = (variants.mc(10), variants.mc(4), variants.fixmatch(10), variants.fedmatch())
rng = np.random.default_rng(0)


@pytest.mark.parametrize('variant', VARIANTS)
def test_differences_are_the_blends(variant):
    """For every factor, degenerate value and value of the image."""
    blended, _ = tables.blends(variant)
    steps, lifted = tables.differences(variant)
    degenerate, image = np.mgrid[:256, :256]
    for row, expected in enumerate(blended):
        place = image - degenerate + 255
        step = steps[row][place].astype(int)
        for of_row, at, first in lifted:
            step += (of_row == row) & (place == at) & (degenerate >= first)
        np.testing.assert_array_equal(np.clip(degenerate + step, 0, 255), expected)
    assert abs(steps).max() <= 256  # integers that bfloat16 holds


@pytest.mark.slow
@pytest.mark.parametrize('randaugment', ['mc', 'fixmatch'])
def test_views_are_the_same_in_both_forms(randaugment):
    images = jnp.asarray(rng.integers(0, 256, (64, 12, 10, 3), np.uint8))
    options = augment.AugmentOptions(randaugment=randaugment, cutout=4)

    def views(key):
        return augment.weak(key, images, options), augment.strong(key, images, options)

    made = {}
    for platform in PLATFORMS:
        with machine.programs_for(platform):
            made[platform] = jax.jit(lambda key: views(key))(jax.random.key(3))
    for cpu, tpu in zip(*made.values(), strict=True):
        np.testing.assert_array_equal(cpu, tpu)
        assert np.any(cpu != images)
