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

from pathlib import Path as _Path

from etils import epy as _epy

__version__ = '0.1.0'

# `semisfl_jax.configs` is the folder configs/: in a wheel it lies inside of the package, in a checkout beside it.
if not _Path(__file__).with_name('configs').is_dir():
    __path__.append(str(_Path(__file__).parents[1]))

with _epy.lazy_api_imports(globals()):  # each is loaded when it is first used
    from semisfl_jax import (
        algorithms,
        augment,
        compare,
        config,
        configs,
        core,
        costs,
        cuts,
        data,
        models,
        plots,
        runs,
        studies,
        tasks,
        training,
    )
    from semisfl_jax.algorithms import Method, option, register
    from semisfl_jax.config import failures, get_config
    from semisfl_jax.core import errors, frequency, hparams, losses, queue, rng, sampling, teacher, trees, types
    from semisfl_jax.core.errors import UserError
    from semisfl_jax.studies import sweeps
    from semisfl_jax.training import diagnostics, loop
    from semisfl_jax.training.events import console
    from semisfl_jax.training.load import Result, Trained, load_trained
    from semisfl_jax.training.loop import train
    from semisfl_jax.training.simulation import build

__all__ = ['__version__', *(name for name in globals()['__dir__']() if not name.startswith('_'))]
