"""The phases of a round, each a pure function built once from a model and its hyper-parameters."""

from semisfl_jax.phases.cross_entity import UNLABELED_METRICS, build_cross_entity, no_cross_entity
from semisfl_jax.phases.state import State, init_state, predict
from semisfl_jax.phases.supervised import build_supervised

__all__ = [
    'UNLABELED_METRICS',
    'State',
    'build_cross_entity',
    'build_supervised',
    'init_state',
    'no_cross_entity',
    'predict',
]
