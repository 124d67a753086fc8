"""FedMatch: the method, disjoint learning, and helper agreement."""

from semisfl_jax.algorithms.fedmatch.method import METHOD, FedMatch, fedmatch

__all__ = ['METHOD', 'FedMatch', 'fedmatch']
