"""The draws of batches (core/sampling.py), compiled, for twins: op by op they take most of a twin's time."""

import jax

from semisfl_jax.core import sampling

read = jax.jit(sampling.read)
server_rows = jax.jit(sampling.server_rows, static_argnums=(2, 3, 4))
client_rows = jax.jit(sampling.client_rows, static_argnums=3)
