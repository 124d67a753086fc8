"""What rounds cost: bytes that clients and server send, work of both, seconds on a simulated network.

`pieces` weighs the parts of a model, `prices` has what the prices of methods are made of, `network` says how fast,
`rounds` adds it up. The prices of all cuts of a model are in `semisfl_jax.cuts`.
"""

from semisfl_jax.costs.clients import Clients, drop, whole
from semisfl_jax.costs.network import BANDWIDTH_UNITS, CostOptions
from semisfl_jax.costs.network import check as check_network
from semisfl_jax.costs.prices import (
    NUMBER,
    ClientCost,
    CostContext,
    check_model,
    client_memory,
    cross_entity,
    supervised_work,
    whole_model,
)
from semisfl_jax.costs.rounds import (
    Bill,
    CostModel,
    add,
    bill,
    build,
    drop_late,
)

__all__ = [
    'BANDWIDTH_UNITS',
    'NUMBER',
    'Bill',
    'ClientCost',
    'Clients',
    'CostContext',
    'CostModel',
    'CostOptions',
    'add',
    'bill',
    'build',
    'check_model',
    'check_network',
    'client_memory',
    'cross_entity',
    'drop',
    'drop_late',
    'supervised_work',
    'whole',
    'whole_model',
]
