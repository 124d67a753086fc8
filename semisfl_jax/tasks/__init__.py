"""Tasks: what clients learn, and how it is judged. Classification is one of them."""

from semisfl_jax.tasks.catalog import NAMES, make
from semisfl_jax.tasks.classification import classification
from semisfl_jax.tasks.gain import delta_m
from semisfl_jax.tasks.panoptic import PanopticQuality, panoptic_quality
from semisfl_jax.tasks.task import (
    ACCURACY,
    AP,
    IGNORED,
    IOU,
    MIOU,
    ODSF,
    PIXELS,
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
    'NAMES',
    'ODSF',
    'PIXELS',
    'RMSE',
    'SCORES',
    'PanopticQuality',
    'Score',
    'Scorer',
    'Task',
    'classification',
    'delta_m',
    'make',
    'panoptic_quality',
]
