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


def test_a_tree_has_the_bytes_of_all_its_arrays():
    tree = {'a': np.zeros((2, 3), np.float32), 'b': [np.zeros(5, bool)], 'c': ()}
    assert trees.nbytes(tree) == trees.nbytes(jax.eval_shape(lambda: tree)) == 29


def test_rows_of_a_cohort_go_back_where_they_came_from():
    tree = {'w': jnp.arange(10.0).reshape(5, 2)}
    ids, weight = jnp.array([3, 1, 1]), jnp.array([1.0, 1.0, 0.0])  # the last is padding, a copy of client 1
    taken = trees.gather(tree, ids)
    np.testing.assert_array_equal(taken['w'], [[6, 7], [2, 3], [2, 3]])
    new = {'w': jnp.array([[60.0, 70.0], [20.0, 30.0], [-1.0, -1.0]])}
    expected = [[0, 1], [20, 30], [4, 5], [60, 70], [8, 9]]
    np.testing.assert_array_equal(trees.scatter(tree, ids, new, weight)['w'], expected)
    assert 'unique_indices = true' in jax.jit(trees.scatter).lower(tree, ids, new, weight).as_text()
    assert trees.scatter((), ids, (), weight) == ()
