"""Tables of values: differences that are blends."""

import numpy as np
import pytest

from semisfl_jax.augment import tables, variants

VARIANTS = (*(variants.get(*each) for each in (('mc', 10), ('mc', 4), ('fixmatch', 10))), variants.FEDMATCH)


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
