# ruff: noqa: F401
"""Tasks: what clients learn, and how it is scored. Classification is one of them."""

from semisfl_jax.tasks.catalog import classification, make, smallest
from semisfl_jax.tasks.task import (
    ACCURACY,
    DENSE,
    GLOBAL_LOSS,
    IGNORED,
    LAST,
    MIOU,
    OUTPUTS,
    RMSE,
    SCORES,
    TRIVIAL_NAMES,
    Headline,
    Score,
    Scorer,
    Task,
    delta_m,
    score_key,
    split_key,
)
