"""How the work of many clients, and of many trials, is laid out on the hardware."""

from semisfl_jax.parallel.client_maps import CLIENT_MAPS, TRIAL_MAPS, client_map, in_chunks, in_turn, trial_map
from semisfl_jax.parallel.mesh import (
    AXIS,
    available,
    available_to_trials,
    divide,
    everywhere,
    layout,
    like,
    make_mesh,
    replicate,
    slots,
    spread,
)

__all__ = [
    'AXIS',
    'CLIENT_MAPS',
    'TRIAL_MAPS',
    'available',
    'available_to_trials',
    'client_map',
    'divide',
    'everywhere',
    'in_chunks',
    'in_turn',
    'layout',
    'like',
    'make_mesh',
    'replicate',
    'slots',
    'spread',
    'trial_map',
]
