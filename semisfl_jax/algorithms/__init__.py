"""Methods by name. A builder turns (model, views, hparams, layout) into an `Algorithm`.

One that is put into `BUILDERS` from outside is a method like these; one in no set below has clients, whose rows may
meet in one top.
"""

from __future__ import annotations

from collections.abc import Callable

from semisfl_jax import sampling
from semisfl_jax.algorithms.fedavg import fedavg
from semisfl_jax.algorithms.fedmatch import fedmatch
from semisfl_jax.algorithms.fedprox import fedprox
from semisfl_jax.algorithms.fedswitch import fedswitch
from semisfl_jax.algorithms.fedswitch_sl import fedswitch_sl
from semisfl_jax.algorithms.semifl import semifl
from semisfl_jax.algorithms.semisfl import semisfl
from semisfl_jax.algorithms.splitfed import splitfed
from semisfl_jax.algorithms.supervised_only import supervised_only
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import HParams
from semisfl_jax.models import SplitModel
from semisfl_jax.types import HERE, Algorithm, Layout, Views
from semisfl_jax.wording import use_one_of

BUILDERS: dict[str, Callable[..., Algorithm]] = {
    'semisfl': semisfl,
    'supervised_only': supervised_only,
    'fedavg': fedavg,
    'fedprox': fedprox,
    'fedmatch': fedmatch,
    'fedswitch': fedswitch,
    'semifl': semifl,
    'fedswitch_sl': fedswitch_sl,
    'splitfed': splitfed,
}
NAMES = tuple(BUILDERS)
SERVER_ONLY = frozenset({'supervised_only'})  # methods without clients
FULL_MODEL = frozenset({'fedavg', 'fedprox', 'fedmatch', 'fedswitch', 'semifl'})  # clients train the whole model
OWN_TOP = FULL_MODEL | {'splitfed'}  # methods in which no top sees the rows of several clients at once
ADAPTS_K_S = frozenset({'semisfl'})  # methods of which the controller of K_s is a part
BY_IMAGES = frozenset({'fedavg', 'fedprox', 'splitfed'})  # methods whose papers weight clients by their images


def build(name: str, model: SplitModel, views: Views, hparams: HParams, layout: Layout = HERE) -> Algorithm:
    """The method `name`.

    Raises:
      UserError: an unknown name, or a record that says what cannot be.
    """
    if name not in BUILDERS:
        raise UserError(f"algorithm='{name}' is unknown; {use_one_of(name, BUILDERS)}")
    algorithm = BUILDERS[name](model, views, hparams, layout)
    if algorithm.reads not in sampling.READS:
        raise UserError(
            f"algorithm='{name}': its Algorithm has reads='{algorithm.reads}'; use one of {', '.join(sampling.READS)}"
        )
    return algorithm


__all__ = [
    'ADAPTS_K_S',
    'BUILDERS',
    'BY_IMAGES',
    'FULL_MODEL',
    'NAMES',
    'OWN_TOP',
    'SERVER_ONLY',
    'build',
]
