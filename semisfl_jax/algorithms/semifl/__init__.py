"""SemiFL: the method, its options, the sets of images that a client trains on, and that training."""

from semisfl_jax.algorithms.semifl.method import METHOD, semifl
from semisfl_jax.algorithms.semifl.options import SemiFL

__all__ = ['METHOD', 'SemiFL', 'semifl']
