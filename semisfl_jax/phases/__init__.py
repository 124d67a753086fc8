"""The phases of a round, each a pure function built once from a model and its hyper-parameters."""

from semisfl_jax.phases.cross_entity import UNLABELED_METRICS, build_cross_entity, no_cross_entity
from semisfl_jax.phases.full_model import after_warm_up, build_server, forward
from semisfl_jax.phases.local import (
    Batch,
    Part,
    Visit,
    Work,
    build_local,
    collect,
    descend,
    init_clients,
    plan,
    read,
)
from semisfl_jax.phases.objective import build_objective, semi_supervised
from semisfl_jax.phases.state import State, init_state, predict
from semisfl_jax.phases.statistics import build_statistics
from semisfl_jax.phases.supervised import build_supervised

__all__ = [
    'UNLABELED_METRICS',
    'Batch',
    'Part',
    'State',
    'Visit',
    'Work',
    'after_warm_up',
    'build_cross_entity',
    'build_local',
    'build_objective',
    'build_server',
    'build_statistics',
    'build_supervised',
    'collect',
    'descend',
    'forward',
    'init_clients',
    'init_state',
    'no_cross_entity',
    'plan',
    'predict',
    'read',
    'semi_supervised',
]
