"""The core: a round and what it consists of. Nothing here knows of configurations, files or data sets.

Every phase is a pure function, built once from a model and its hyper-parameters. Names are loaded when first used.
"""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from semisfl_jax.core import cpu
    from semisfl_jax.core.client_maps import CLIENT_MAPS, TRIAL_MAPS, client_map, in_chunks, sequential_map, trial_map
    from semisfl_jax.core.cross_entity import UNLABELED_METRICS, build_cross_entity, no_cross_entity
    from semisfl_jax.core.cross_entity_types import RowLosses, Rows
    from semisfl_jax.core.full_model import build_server, forward, skip_pre_rounds
    from semisfl_jax.core.local import (
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
    from semisfl_jax.core.mesh import (
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
    from semisfl_jax.core.objective import Objective, build_objective, plain, semi_supervised
    from semisfl_jax.core.rounds import predict_by, server_then_clients, supervised_then_cross_entity
    from semisfl_jax.core.state import CrossEntityPhase, LocalPhase, ServerPhase, State, init_state, predict
    from semisfl_jax.core.supervised import build_supervised
    from semisfl_jax.core.task_model import TaskModel

__all__ = [
    'AXIS',
    'CLIENT_MAPS',
    'TRIAL_MAPS',
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
    'available',
    'available_to_trials',
    'build_cross_entity',
    'build_local',
    'build_objective',
    'build_server',
    'build_supervised',
    'client_axis',
    'client_map',
    'collect',
    'cpu',
    'forward',
    'guessed_rows',
    'in_chunks',
    'init_clients',
    'init_state',
    'iterate',
    'like',
    'local_sgd',
    'make_mesh',
    'no_cross_entity',
    'padded_size',
    'plain',
    'plan',
    'predict',
    'predict_by',
    'read',
    'replicate',
    'replicated',
    'semi_supervised',
    'sequential_map',
    'server_then_clients',
    'shard',
    'shard_round',
    'skip_pre_rounds',
    'supervised_then_cross_entity',
    'trial_map',
    'weigh',
]
