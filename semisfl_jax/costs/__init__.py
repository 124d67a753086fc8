"""The cost of rounds: bytes sent by clients and server, operations of both, seconds on a simulated network.

`prices` measures the parts of a model and holds the building blocks of methods' prices, `network` simulates bandwidths
and speeds, `rounds` prices a round. `semisfl_jax.cuts` prices all cuts of a model.
"""

from semisfl_jax.costs.network import CostOptions
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
    Clients,
    CostModel,
    RoundCost,
    add,
    build,
    drop,
    drop_late,
    no_failures,
    prepare,
    price_round,
    work,
)

__all__ = [
    'NUMBER',
    'ClientCost',
    'Clients',
    'CostContext',
    'CostModel',
    'CostOptions',
    'RoundCost',
    'add',
    'build',
    'check_model',
    'check_network',
    'client_memory',
    'cross_entity',
    'drop',
    'drop_late',
    'no_failures',
    'prepare',
    'price_round',
    'supervised_work',
    'whole_model',
    'work',
]
