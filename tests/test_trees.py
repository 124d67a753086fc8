"""What loops report, packed in one array and unpacked to the bit; the size of a tree."""

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax.core import trees

VALUES = {
    'loss': np.array([1.5, np.nan, -0.0, 3.4e38, 1e-45], np.float32),
    'counts': {'right': np.array([0, 7, -1, 2**31 - 1, 16_777_217], np.int32)},  # the last is not a float32
}


def test_packed_scalars_are_the_same_bits():
    packed = jax.jit(lambda values: jax.lax.map(trees.pack, values))(VALUES)
    like = jax.tree.map(lambda values: values[0], VALUES)
    assert (packed.shape, packed.dtype) == ((5, 2), jnp.int32)
    for rows in (packed, packed.reshape(5, 1, 2)):
        unpacked = trees.unpack(rows, like)
        assert jax.tree.structure(unpacked) == jax.tree.structure(VALUES)
        for got, expected in zip(jax.tree.leaves(unpacked), jax.tree.leaves(VALUES), strict=True):
            assert (got.dtype, got.shape) == (expected.dtype, rows.shape[:-1])
            assert np.asarray(got).tobytes() == expected.tobytes()


def test_the_size_of_a_tree():
    tree = {'a': np.zeros((2, 3), np.float32), 'b': [np.zeros(5, bool)], 'c': ()}
    assert trees.nbytes(tree) == trees.nbytes(jax.eval_shape(lambda: tree)) == 29
