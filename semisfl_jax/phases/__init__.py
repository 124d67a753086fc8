"""The phases of a round, each a pure function built once from a model and its hyper-parameters."""

from semisfl_jax.phases.cross_entity import UNLABELED_METRICS, build_cross_entity, no_cross_entity
from semisfl_jax.phases.cross_entity_types import RowLosses, Rows
from semisfl_jax.phases.full_model import build_server, forward, skip_during_warmup
from semisfl_jax.phases.local import (
    Batch,
    ClientInput,
    ClientLoss,
    ClientOutput,
    ClientStep,
    ClientWeights,
    build_local,
    collect,
    guessed_rows,
    init_clients,
    iterate,
    local_sgd,
    plan,
    read,
    weigh,
)
from semisfl_jax.phases.objective import Objective, build_objective, plain, semi_supervised
from semisfl_jax.phases.rounds import predict_by, server_then_clients, supervised_then_cross_entity
from semisfl_jax.phases.state import CrossEntityPhase, LocalPhase, ServerPhase, State, init_state, predict
from semisfl_jax.phases.statistics import build_statistics
from semisfl_jax.phases.supervised import build_supervised
from semisfl_jax.phases.tasks import TaskModel

__all__ = [
    'UNLABELED_METRICS',
    'Batch',
    'ClientInput',
    'ClientLoss',
    'ClientOutput',
    'ClientStep',
    'ClientWeights',
    'CrossEntityPhase',
    'LocalPhase',
    'Objective',
    'RowLosses',
    'Rows',
    'ServerPhase',
    'State',
    'TaskModel',
    'build_cross_entity',
    'build_local',
    'build_objective',
    'build_server',
    'build_statistics',
    'build_supervised',
    'collect',
    'forward',
    'guessed_rows',
    'init_clients',
    'init_state',
    'iterate',
    'local_sgd',
    'no_cross_entity',
    'plain',
    'plan',
    'predict',
    'predict_by',
    'read',
    'semi_supervised',
    'server_then_clients',
    'skip_during_warmup',
    'supervised_then_cross_entity',
    'weigh',
]
