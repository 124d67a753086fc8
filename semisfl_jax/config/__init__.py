"""Configurations: their keys, what they may be, what they mean together, and how a command line gives them."""

from semisfl_jax.config.checks import check
from semisfl_jax.config.resolve import (
    INERT,
    default_workdir,
    differences,
    flatten,
    hparams,
    identity_hash,
    resolve,
    trials,
)

__all__ = [
    'INERT',
    'check',
    'default_workdir',
    'differences',
    'flatten',
    'hparams',
    'identity_hash',
    'resolve',
    'trials',
]
