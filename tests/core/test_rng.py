"""Named streams: keys and generators that depend on a path of names and numbers alone."""

import jax
import numpy as np

from semisfl_jax.core import rng

CHECK = 0xCBF43926  # CRC-32 of '123456789', the check value of every catalogue of CRCs


def bits(key):
    return np.asarray(jax.random.key_data(key))


def test_a_stream_is_folded_from_its_path_part_by_part():
    root = jax.random.key(5)
    folded = jax.random.fold_in(jax.random.fold_in(root, CHECK), 17)
    np.testing.assert_array_equal(bits(rng.fold(rng.root(5), '123456789', 17)), bits(folded))
    np.testing.assert_array_equal(bits(jax.jit(lambda n: rng.fold(root, '123456789', n))(17)), bits(folded))


def test_the_streams_of_the_host_are_those_of_numpy():
    expected = np.random.default_rng([5, CHECK, 17]).random(3)
    np.testing.assert_array_equal(rng.host(5, '123456789', 17).random(3), expected)
