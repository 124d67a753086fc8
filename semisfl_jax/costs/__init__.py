# ruff: noqa: F401
"""The cost of rounds: bytes sent by clients and server, operations of both, seconds on a simulated network.

`prices` measures the parts of a model and holds the building blocks of methods' prices, `rounds` prices a round on the
network that it simulates. `semisfl_jax.cuts` prices all cuts of a model.
"""

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
    check_network,
    drop,
    drop_late,
    no_failures,
    prepare,
    price_round,
    work,
)
