"""Both forms of reading and counting, and views in the form for TPUs against the one for CPUs, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import augment
from semisfl_jax.augment import lookups
from semisfl_jax.base import machine

PLATFORMS = ('cpu', 'tpu')
rng = np.random.default_rng(0)


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


@pytest.mark.parametrize('platform', PLATFORMS)
def test_pixels_entries_and_counts_are_numpys(platform):
    """Of three images at once, and of two batches of them under vmap."""
    planes = rng.integers(0, 256, (2, 3, 4, 30), np.uint8)
    index = rng.integers(0, 30, (2, 3, 17))
    entries = rng.integers(-256, 257, (2, 3, 4, 256))

    def read(planes, index, entries):
        values = planes.astype(jnp.int32)
        return lookups.pixels(planes, index), lookups.table(values, entries), lookups.cumulative_histogram(planes)

    with machine.programs_for(platform):
        pixels, values, counts = jax.jit(jax.vmap(read))(planes, index, entries)
    np.testing.assert_array_equal(pixels, np.take_along_axis(planes, index[:, :, None], axis=3))
    np.testing.assert_array_equal(values, np.take_along_axis(entries, planes.astype(int), axis=3))
    np.testing.assert_array_equal(counts, (planes[..., None] <= np.arange(256)).sum(axis=3))
