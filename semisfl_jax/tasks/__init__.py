# ruff: noqa: F401
"""Tasks: what clients learn, and how it is scored. Classification is one of them."""

from semisfl_jax.tasks import objects
from semisfl_jax.tasks.catalog import classification, make, smallest
from semisfl_jax.tasks.labels import of_clients
from semisfl_jax.tasks.task import (
    ACCURACY,
    BESIDE_ACCURACY,
    DENSE,
    GLOBAL_LOSS,
    IGNORED,
    LAST,
    MIOU,
    OUTPUTS,
    PARTS,
    PER_CLASS,
    RMSE,
    SCORES,
    TRIVIAL_NAMES,
    Headline,
    Score,
    Scorer,
    Task,
    delta_m,
    parts_of,
    score_key,
    split_key,
)
