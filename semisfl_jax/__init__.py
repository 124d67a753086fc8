"""Semi-supervised split federated learning in JAX.

    import semisfl_jax as sfl

    config = sfl.get_config('digits', algorithm='semisfl', rounds=50)
    result = sfl.train(config, 'runs/a')  # summary, metrics as arrays, final state; files in runs/a
    print(result.summary['final_accuracy'], result.metrics['loss_supervised'])

    simulation = sfl.build(config)  # the same experiment round by round, without files
    carry = simulation.init()
    carry, metrics = simulation.round(carry)  # data, cohort and K_s are filled in
    simulation.evaluate(carry)

Names are loaded when they are first used; modules too: sfl.losses, sfl.queue, sfl.models, sfl.data.
"""

import importlib
from pathlib import Path
from typing import Any

__version__ = '0.1.0'

# `semisfl_jax.configs` is the folder configs/: in a wheel it lies inside of the package, in a checkout beside it.
if not Path(__file__).with_name('configs').is_dir():
    __path__.append(str(Path(__file__).parents[1]))

_PUBLIC = {
    'Method': 'algorithms',
    'Result': 'loop',
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
