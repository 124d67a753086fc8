"""What rounds cost: bytes that clients and server send, work of both, seconds on a simulated network.

`pieces` weighs the parts of a model, `methods` says what each method sends and computes, `network` how fast,
`rounds` adds it up, `cuts` prices all cuts of a model.
"""

from semisfl_jax.costs.clients import Clients, drop, whole
from semisfl_jax.costs.methods import METHODS
from semisfl_jax.costs.methods import check as check_model
from semisfl_jax.costs.network import BANDWIDTH_UNITS, CostOptions
from semisfl_jax.costs.network import check as check_network
from semisfl_jax.costs.rounds import Bill, CostModel, add, bill, build, drop_late

__all__ = [
    'BANDWIDTH_UNITS',
    'METHODS',
    'Bill',
    'Clients',
    'CostModel',
    'CostOptions',
    'add',
    'bill',
    'build',
    'check_model',
    'check_network',
    'drop',
    'drop_late',
    'whole',
]
