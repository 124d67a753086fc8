# ruff: noqa: F401
"""The cost of rounds: bytes that clients and server send, operations of both, seconds on a simulated network.

`prices` measures the parts of a model and holds the building blocks of methods' prices; `rounds` simulates the network
and prices a round on it. `semisfl_jax.lab.cuts` prices all cuts of a model.
"""

from semisfl_jax.costs.prices import (
    NUMBER,
    ClientCost,
    CostContext,
    check_model,
    client_memory,
    cross_entity,
    take_over,
    whole_model,
)
from semisfl_jax.costs.rounds import (
    GIB,
    Clients,
    CostModel,
    CostOptions,
    RoundCost,
    build,
    check_network,
    drop,
    drop_late,
    no_failures,
    price_round,
    work,
)
