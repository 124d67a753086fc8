"""FedMatch: the method, its options, a client's round, disjoint learning, and helper agreement."""

from semisfl_jax.algorithms.fedmatch.method import METHOD, fedmatch
from semisfl_jax.algorithms.fedmatch.options import FedMatch

__all__ = ['METHOD', 'FedMatch', 'fedmatch']
