"""The client axis of a process with one device, which methods see by default."""

import jax.numpy as jnp
import numpy as np

from semisfl_jax.core.types import LOCAL_CLIENTS


def test_all_clients_are_local_by_default():
    """A map over three clients, whose results are all that there are to sum and to gather."""
    doubled = LOCAL_CLIENTS.map(lambda x, factor: jnp.sum(x) * factor, in_axes=(0, None))(
        jnp.arange(6.0).reshape(3, 2), 2.0
    )
    np.testing.assert_array_equal(doubled, [2, 10, 18])
    np.testing.assert_array_equal(LOCAL_CLIENTS.psum(jnp.sum(doubled)), 30)
    np.testing.assert_array_equal(LOCAL_CLIENTS.all_gather(doubled), doubled)
