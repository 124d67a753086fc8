"""FedMatch: the method, its disjoint learning, and the agreement of helpers."""

from semisfl_jax.algorithms.fedmatch.method import METHOD, FedMatch, fedmatch

__all__ = ['METHOD', 'FedMatch', 'fedmatch']
