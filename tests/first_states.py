"""First states of the methods, on the toy clients."""

from semisfl_jax import algorithms
from semisfl_jax.core import rng
from tests import toy


def start(hparams=toy.HPARAMS, name='semisfl', seed=0, model=None):
    """Method, key and first state."""
    algorithm = algorithms.build(name, model or toy.model(), toy.VIEWS, hparams)
    key = rng.root(seed)
    return algorithm, key, algorithm.init(key)
