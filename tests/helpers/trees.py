"""Comparison of trees of arrays."""

import flax
import numpy as np


def assert_trees_close(a, b, **tolerance):
    a, b = (flax.traverse_util.flatten_dict(flax.serialization.to_state_dict(tree)) for tree in (a, b))
    assert a.keys() == b.keys()
    for path, leaf in a.items():
        np.testing.assert_allclose(leaf, b[path], err_msg=str(path), **tolerance)
