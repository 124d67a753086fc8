"""Tasks: what clients learn, and how it is judged. Classification is one of them."""

from semisfl_jax.tasks.classification import classification
from semisfl_jax.tasks.task import (
    ACCURACY,
    AP,
    DENSE,
    IGNORED,
    IOU,
    MIOU,
    ODSF,
    OUTPUTS,
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
    'ODSF',
    'OUTPUTS',
    'RMSE',
    'SCORES',
    'Headline',
    'Score',
    'Scorer',
    'Task',
    'classification',
    'score_key',
    'split_key',
]
