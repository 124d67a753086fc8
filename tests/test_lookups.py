"""Both forms of reading and counting, and views in the form for TPUs against the one for CPUs, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import augment
from semisfl_jax.augment import lookups, tables, variants
from semisfl_jax.core import machine

PLATFORMS = ('cpu', 'tpu')
VARIANTS = (variants.mc(10), variants.mc(4), variants.fixmatch(10), variants.fedmatch())
rng = np.random.default_rng(0)


@pytest.mark.parametrize('platform', PLATFORMS)
def test_against_numpy(platform):
    index = rng.integers(0, 99, (3, 7)).astype(np.int32)
    entries = rng.integers(-256, 257, (3, 2, 30)).astype(np.int16)
    values = rng.integers(0, 30, (3, 2, 6)).astype(np.int32)
    flat = rng.integers(0, 256, (3, 2, 99), np.uint8)
    with machine.programs_for(platform):
        pixels, read = lookups.pixels(flat, index), lookups.table(values, entries)
        counts = lookups.cumulative_histogram(flat)
        counts_of_clients = jax.vmap(lookups.cumulative_histogram)(flat[:, None])
    assert (pixels.dtype, read.dtype) == (np.uint8, np.int16)
    for b in range(3):
        np.testing.assert_array_equal(pixels[b], flat[b][:, index[b]])
        for c in range(2):
            np.testing.assert_array_equal(read[b, c], entries[b, c][values[b, c]])
            np.testing.assert_array_equal(counts[b, c], np.cumsum(np.bincount(flat[b, c], minlength=256)))
    np.testing.assert_array_equal(counts_of_clients[:, 0], counts)


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
