"""Tasks: what clients learn, and how it is judged. Classification is one of them."""

from semisfl_jax.tasks.classification import classification
from semisfl_jax.tasks.task import (
    ACCURACY,
    AP,
    IGNORED,
    IOU,
    MIOU,
    ODSF,
    RMSE,
    SCORES,
    Score,
    Scorer,
    Task,
)

__all__ = [
    'ACCURACY',
    'AP',
    'IGNORED',
    'IOU',
    'MIOU',
    'ODSF',
    'RMSE',
    'SCORES',
    'Score',
    'Scorer',
    'Task',
    'classification',
]
