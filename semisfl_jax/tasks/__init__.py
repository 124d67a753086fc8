"""Tasks: what clients learn, and how it is judged. Classification is one of them."""

from semisfl_jax.tasks.catalog import NAMES, make, score, smallest
from semisfl_jax.tasks.classification import classification
from semisfl_jax.tasks.gain import delta_m
from semisfl_jax.tasks.task import (
    ACCURACY,
    AP,
    DENSE,
    IGNORED,
    IOU,
    MIOU,
    ODSF,
    OUTPUTS,
    PIXELS,
    RMSE,
    SCORES,
    Headline,
    Score,
    Scorer,
    Task,
    score_key,
    split_key,
)

__all__ = [
    'ACCURACY',
    'AP',
    'DENSE',
    'IGNORED',
    'IOU',
    'MIOU',
    'NAMES',
    'ODSF',
    'OUTPUTS',
    'PIXELS',
    'RMSE',
    'SCORES',
    'Headline',
    'Score',
    'Scorer',
    'Task',
    'classification',
    'delta_m',
    'make',
    'score',
    'score_key',
    'smallest',
    'split_key',
]
