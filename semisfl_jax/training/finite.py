"""Stops a run at non-finite numbers; its last checkpoint is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from semisfl_jax.config import failures
from semisfl_jax.core.errors import Diverged
from semisfl_jax.core.hparams import shared_defaults
from semisfl_jax.costs import Clients
from semisfl_jax.training import checkpoint

_STOPPED = ': stopped. '


def without_advice(message: str) -> str:
    """The line of such an error without what is kept where: 'loss_supervised is nan in round 4'."""
    return message.partition(_STOPPED)[0]


def check_losses(
    prefix: str,
    folder: Path | None,
    index: int,
    measured: Mapping[str, Any],
    clients: Clients | None,
    config: ConfigDict,
) -> None:
    """Checks the training losses of a round.

    Args:
      prefix: of the error message.
      folder: of the trial, None if nothing is saved.
      index: of the round, 0-based.
      measured: its metrics.
      clients: participation of the round's clients; None for a server-only round.
      config: of the run.

    Raises:
      Diverged: a loss is NaN or infinite.
    """
    every_loss = clients is not None and not failures.lost_all(clients)
    for name, value in measured.items():
        if name.startswith('loss_' if every_loss else 'loss_supervised') and not math.isfinite(value):
            raise Diverged(f'{prefix}{name} is {value} in round {index + 1}{_STOPPED}{_kept(folder, config)}')


def check_weights(prefix: str, folder: Path | None, number: int, state: Any, config: ConfigDict) -> None:
    """Checks the state to be saved after `number` rounds: the last step of a round may have made it non-finite.

    The other arguments as in `check_losses`.

    Raises:
      Diverged: the state contains NaN or infinity.
    """
    if not _all_finite(state):
        raise Diverged(f'{prefix}weights are infinite or NaN after round {number}{_STOPPED}{_kept(folder, config)}')


@jax.jit
def _all_finite(state: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def _kept(folder: Path | None, config: ConfigDict) -> str:
    advice = 'a lower config.lr may help'
    if config.temperature < shared_defaults()['temperature']:  # logits are divided by it
        advice = f'a higher config.temperature (it is {config.temperature}) or a lower config.lr may help'
    if folder is None:
        return advice[0].upper() + advice[1:]
    saved = checkpoint.rounds_saved(folder / 'checkpoints')
    status = f'The checkpoint of round {saved[-1]} is kept' if saved else 'There was no checkpoint yet'
    return f'{status} in {folder}; {advice}'
