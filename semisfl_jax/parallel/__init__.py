"""Distributes the work of many clients, and of many trials, over the hardware."""

from semisfl_jax.parallel import cpu
from semisfl_jax.parallel.client_maps import CLIENT_MAPS, TRIAL_MAPS, client_map, in_chunks, sequential_map, trial_map
from semisfl_jax.parallel.mesh import (
    AXIS,
    available,
    available_to_trials,
    client_axis,
    like,
    make_mesh,
    padded_size,
    replicate,
    replicated,
    shard,
    shard_round,
)

__all__ = [
    'AXIS',
    'CLIENT_MAPS',
    'TRIAL_MAPS',
    'available',
    'available_to_trials',
    'client_axis',
    'client_map',
    'cpu',
    'in_chunks',
    'like',
    'make_mesh',
    'padded_size',
    'replicate',
    'replicated',
    'sequential_map',
    'shard',
    'shard_round',
    'trial_map',
]
