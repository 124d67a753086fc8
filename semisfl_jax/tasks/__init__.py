# ruff: noqa: F401
"""Tasks: what clients learn, and how it is judged. Classification is one of them."""

from semisfl_jax.tasks.catalog import classification, make, score, smallest
from semisfl_jax.tasks.task import (
    ACCURACY,
    DENSE,
    IGNORED,
    MIOU,
    OUTPUTS,
    RMSE,
    SCORES,
    Headline,
    Score,
    Scorer,
    Task,
    delta_m,
    score_key,
    split_key,
)
