# ruff: noqa: F401
"""The core: a round and its parts.

Nothing here knows of data sets or runs; the fields of HParams are the keys of a round in a configuration.

Every phase is a pure function, built once from a model and its hyper-parameters. Names are loaded when first used.
"""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from semisfl_jax.core import clients, cross_entity, state, teacher, types
    from semisfl_jax.core.cross_entity import Labeler, WeakViews, build_cross_entity, count_confident, reaches
    from semisfl_jax.core.hparams import HParams, learning_rate, nonzero, optimizer, plain_steps
    from semisfl_jax.core.local import (
        Batch,
        ClientInput,
        ClientLoss,
        ClientOutput,
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
    from semisfl_jax.core.state import State, init_state, num_classes, predict, statistics, trainable, with_parameters
    from semisfl_jax.core.supervised import build_supervised
    from semisfl_jax.core.teacher import assign_pseudo_labels, count_pseudo_labels, ema, hard_labels, histogram
    from semisfl_jax.core.types import (
        LOCAL_CLIENTS,
        Algorithm,
        ClientAxis,
        Cohort,
        Federation,
        LossValue,
        Metrics,
        Reported,
        Round,
        SplitModel,
        SplitParams,
        Variables,
        Views,
    )
