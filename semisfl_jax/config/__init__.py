# ruff: noqa: F401
"""Configurations: their keys, validation, resolution, and command-line parsing."""

from semisfl_jax.config import failures
from semisfl_jax.config.checks import check
from semisfl_jax.config.keys import default_config
from semisfl_jax.config.load import apply_setting, get_config, with_values
from semisfl_jax.config.resolve import (
    INERT,
    MOVABLE,
    default_workdir,
    differences,
    flatten,
    hparams,
    identity_hash,
    k_s_rule,
    num_tasks,
    resolve,
    run_name,
    trials,
)
