# ruff: noqa: F401
"""Semi-supervised split federated learning in JAX.

    import semisfl_jax as sfl

    config = sfl.get_config('digits', algorithm='semisfl', rounds=50)
    result = sfl.train(config, 'runs/a')  # with all files of a run
    result.summary, result.metrics, result.state  # numbers, arrays over rounds, final state

    simulation = sfl.build(config)  # the same experiment round by round, without files
    carry = simulation.init()
    carry, metrics = simulation.round(carry)  # data, cohort and K_s are filled in
    simulation.evaluate(carry)

    trained = sfl.load_trained('runs/a')  # the models that a run saved
    trained.predict(images)['teacher']  # logits

Names are loaded when they are first used; modules too: sfl.losses, sfl.queue, sfl.models, sfl.data.
"""

from etils import epy as _epy

__version__ = '0.2.0'

with _epy.lazy_api_imports(globals()):  # each is loaded when it is first used
    from semisfl_jax import (
        algorithms,
        augment,
        configs,
        costs,
        data,
        models,
        runs,
        tasks,
    )
    from semisfl_jax.algorithms import Method, option, register
    from semisfl_jax.base import errors
    from semisfl_jax.base.errors import UserError
    from semisfl_jax.config import INERT, apply_setting, check, failures, get_config, identity_hash, resolve, run_name
    from semisfl_jax.config.ignored_keys import unread_keys
    from semisfl_jax.config.keys import flat
    from semisfl_jax.config.load import check_changes
    from semisfl_jax.core import clients, frequency, hparams, losses, queue, rng, sampling, teacher, trees, types
    from semisfl_jax.training import callbacks, diagnostics, events, grid, interrupt, loop, memory, shapes
    from semisfl_jax.training.checkpoint import commit
    from semisfl_jax.training.experiment import Experiment
    from semisfl_jax.training.export import export
    from semisfl_jax.training.inputs import participation
    from semisfl_jax.training.load import Result, Trained, load_data, load_trained
    from semisfl_jax.training.loop import train
    from semisfl_jax.training.metrics import mean_and_error
    from semisfl_jax.training.simulation import build

__all__ = ['__version__', *(name for name in globals()['__dir__']() if not name.startswith('_'))]
