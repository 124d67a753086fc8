"""Semi-supervised split federated learning in JAX.

    import semisfl_jax as sfl

    config = sfl.get_config('digits', algorithm='semisfl', rounds=50)
    result = sfl.train(config, 'runs/a')  # with all files of a run
    result.summary, result.metrics, result.state  # numbers, arrays over rounds, final state

    simulation = sfl.build(config)  # the same experiment round by round, without files
    carry = simulation.init()
    carry, metrics = simulation.round(carry)  # data, cohort and K_s are filled in
    simulation.evaluate(carry)

Names are loaded when they are first used; modules too: sfl.losses, sfl.queue, sfl.models, sfl.data.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors; at run time `__getattr__` loads these names
    from semisfl_jax import (
        algorithms as algorithms,
    )
    from semisfl_jax import (
        augment as augment,
    )
    from semisfl_jax import (
        compare as compare,
    )
    from semisfl_jax import (
        config as config,
    )
    from semisfl_jax import (
        costs as costs,
    )
    from semisfl_jax import (
        cuts as cuts,
    )
    from semisfl_jax import (
        data as data,
    )
    from semisfl_jax import (
        diagnostics as diagnostics,
    )
    from semisfl_jax import (
        ema as ema,
    )
    from semisfl_jax import (
        errors as errors,
    )
    from semisfl_jax import (
        failures as failures,
    )
    from semisfl_jax import (
        frequency as frequency,
    )
    from semisfl_jax import (
        hparams as hparams,
    )
    from semisfl_jax import (
        loop as loop,
    )
    from semisfl_jax import (
        losses as losses,
    )
    from semisfl_jax import (
        models as models,
    )
    from semisfl_jax import (
        parallel as parallel,
    )
    from semisfl_jax import (
        phases as phases,
    )
    from semisfl_jax import (
        plots as plots,
    )
    from semisfl_jax import (
        queue as queue,
    )
    from semisfl_jax import (
        rng as rng,
    )
    from semisfl_jax import (
        runs as runs,
    )
    from semisfl_jax import (
        sampling as sampling,
    )
    from semisfl_jax import (
        studies as studies,
    )
    from semisfl_jax import (
        sweeps as sweeps,
    )
    from semisfl_jax import (
        tasks as tasks,
    )
    from semisfl_jax import (
        training as training,
    )
    from semisfl_jax import (
        trees as trees,
    )
    from semisfl_jax import (
        types as types,
    )
    from semisfl_jax.algorithms import Method as Method
    from semisfl_jax.algorithms import option as option
    from semisfl_jax.algorithms import register as register
    from semisfl_jax.config import get_config as get_config
    from semisfl_jax.errors import UserError as UserError
    from semisfl_jax.loop import train as train
    from semisfl_jax.training.console import console as console
    from semisfl_jax.training.result import Result as Result
    from semisfl_jax.training.simulation import build as build

__version__ = '0.1.0'

# `semisfl_jax.configs` is the folder configs/: in a wheel it lies inside of the package, in a checkout beside it.
if not Path(__file__).with_name('configs').is_dir():
    __path__.append(str(Path(__file__).parents[1]))

_PUBLIC = {
    'Method': 'algorithms',
    'Result': 'training.result',
    'UserError': 'errors',
    'build': 'training.simulation',
    'console': 'training.console',
    'get_config': 'config',
    'option': 'algorithms',
    'register': 'algorithms',
    'train': 'loop',
}
_MODULES = [
    'algorithms',
    'augment',
    'compare',
    'config',
    'configs',
    'costs',
    'cuts',
    'data',
    'diagnostics',
    'ema',
    'errors',
    'failures',
    'frequency',
    'hparams',
    'loop',
    'losses',
    'models',
    'parallel',
    'phases',
    'plots',
    'queue',
    'rng',
    'runs',
    'sampling',
    'studies',
    'sweeps',
    'tasks',
    'training',
    'trees',
    'types',
]

__all__ = ['__version__', *_PUBLIC, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f'{__name__}.{_PUBLIC[name]}'), name)
    if name in _MODULES:
        return importlib.import_module(f'{__name__}.{name}')
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted(__all__)
