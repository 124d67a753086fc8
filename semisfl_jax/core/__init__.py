# ruff: noqa: F401
"""The core: a round and what it consists of. Nothing here knows of data sets or runs; keys and defaults of HParams
are those of configs/default.py.

Every phase is a pure function, built once from a model and its hyper-parameters. Names are loaded when first used.
"""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from semisfl_jax.core.clients import (
        AXIS,
        CLIENT_MAPS,
        available,
        available_to_trials,
        client_axis,
        client_map,
        cpu_was_split,
        like,
        make_mesh,
        padded_size,
        replicate,
        replicated,
        shard,
        shard_round,
        split_cpu,
        trial_map,
    )
    from semisfl_jax.core.cross_entity import (
        Labeler,
        Labels,
        RowLosses,
        Rows,
        WeakViews,
        build_cross_entity,
        no_cross_entity,
    )
    from semisfl_jax.core.local import (
        Batch,
        ClientInput,
        ClientLoss,
        ClientOutput,
        ClientStep,
        ClientWeights,
        build_local,
        build_server,
        collect,
        forward,
        guessed_rows,
        init_clients,
        iterate,
        local_sgd,
        plan,
        predict_by,
        read,
        server_then_clients,
        weigh,
    )
    from semisfl_jax.core.objectives import Objective, build_objective, plain, semi_supervised
    from semisfl_jax.core.state import CrossEntityPhase, LocalPhase, ServerPhase, State, init_state, predict
    from semisfl_jax.core.supervised import build_supervised
    from semisfl_jax.core.teacher import assign_pseudo_labels
