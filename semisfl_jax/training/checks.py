"""Checks while a run trains: what a method returns, which may be a user's, and that numbers are finite."""

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import tasks as tasks_lib
from semisfl_jax.base.errors import STOPPED, Diverged, UserError, describe
from semisfl_jax.config import failures
from semisfl_jax.core.types import MODELS, Algorithm, Array, MethodState, Metrics, Predict
from semisfl_jax.costs import Clients, RoundCost
from semisfl_jax.training import checkpoint

TIMES = ('wall_seconds', 'images_per_second')  # only these values differ between two runs of one experiment
MARKS = ('fake', 'validation')  # true in lines whose scores come from such images
# Keys that the loop itself writes to a line of metrics.jsonl, besides scores
WRITTEN = ('round', 'k_s', *RoundCost._fields, *TIMES, 'clients', 'clients_failed', *MARKS)


def check_algorithm(method: str, algorithm: Algorithm) -> Algorithm:
    """Wraps `algorithm.round` so that tracing it checks what it returns; its numbers stay the same.

    Args:
      method: name of the method, for error messages.
      algorithm: the algorithm that the method built.

    Returns:
      The algorithm with the checked `round`, which raises as `check_round` does.
    """

    @functools.wraps(algorithm.round)
    def round_(key: Array, state: MethodState, *inputs: Any) -> tuple[MethodState, Metrics]:
        after, metrics = algorithm.round(key, state, *inputs)
        check_round(method, state, after, metrics)
        return after, dict(metrics)

    return algorithm._replace(round=round_)


def check_round(method: str, before: MethodState, after: MethodState, metrics: Metrics) -> None:
    """Compares the state that a round returned with the one that it took, and checks its metrics.

    Raises:
      UserError: shapes or types differ, a metric is no scalar, or has a name that the loop itself writes.
    """
    for name, value in metrics.items():
        if name in WRITTEN or tasks_lib.split_key(name):
            raise UserError(f"method '{method}': the loop itself writes '{name}'; give the metric another name")
        if np.shape(value):
            raise UserError(f"method '{method}': metric '{name}' is {describe(value)}; return a scalar, such as a mean")
    old, new = (
        {jax.tree_util.keystr(path): describe(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
        for state in (before, after)
    )
    for path in old | new:
        if (was := old.get(path, 'nothing')) != (is_ := new.get(path, 'nothing')):
            raise UserError(
                f"method '{method}': a round takes {was} as state{path} and returns {is_}; return a state of the same "
                'structure, shapes and types'
            )


def check_counted(method: str, counted: Any, rounds: int) -> None:
    """Checks that `state.round` counts completed rounds: learning rates and the keys of draws depend on it.

    Args:
      method: name of the method, for error messages.
      counted: `state.round` on the host, [] or [R] of several trials.
      rounds: rounds completed.

    Raises:
      UserError: the method counts differently.
    """
    if np.any(counted != rounds):
        raise UserError(
            f"method '{method}': after round {rounds} its state has round={np.ravel(counted)[0]}; return "
            'state.replace(round=state.round + 1, ...)'
        )


def check_predict(method: str, algorithm: Algorithm, task_of: Callable[[str], tasks_lib.Task]) -> Predict:
    """Wraps `algorithm.predict` so that tracing it checks its outputs.

    Args:
      method: name of the method, for error messages.
      algorithm: the algorithm that the method built.
      task_of: finds the task of an output.

    Returns:
      The checked function. It raises UserError if outputs have wrong names or shapes, or lack the headline.
    """
    known = tuple(algorithm.tasks) or MODELS

    def predict(state: Any, images: Any) -> dict[str, Any]:
        outputs = algorithm.predict(state, images)
        if algorithm.headline not in outputs or not set(outputs) <= set(known):
            raise UserError(
                f"method '{method}': predict returns outputs {sorted(outputs)}; return a dict of outputs, by some of "
                f"{', '.join(known)}, with the headline '{algorithm.headline}'"
            )
        for name, by_model in outputs.items():
            task = task_of(name)
            if task.name in tasks_lib.PARTS:  # dicts of a structure of their own
                continue
            wanted = (*images.shape[: 3 if task.dense else 1], task.outputs)
            for output in by_model if isinstance(by_model, tuple) else (by_model,):
                if getattr(output, 'shape', None) != wanted:
                    raise UserError(
                        f"method '{method}': predict returns {describe(output)} for '{name}' of {len(images)} images; "
                        f'return {list(wanted)}'
                    )
        return outputs

    return predict


def check_losses(
    prefix: str, folder: Path | None, number: int, measured: Mapping[str, Any], clients: Clients | None
) -> None:
    """Checks that the training losses of a round are finite.

    Without clients, or if all were lost, only the supervised losses count.

    Args:
      prefix: begins the error message.
      folder: folder of the trial, None if nothing is saved.
      number: round, 1-based.
      measured: metrics of the round.
      clients: participation, None in a server-only round.

    Raises:
      Diverged: a loss is NaN or infinite.
    """
    every_loss = clients is not None and not failures.lost_all(clients)
    for name, value in measured.items():
        if name.startswith('loss_' if every_loss else 'loss_supervised') and not math.isfinite(value):
            raise Diverged(f'{prefix}{name} is {value} in round {number}{STOPPED}{_advice(folder)}')


def check_weights(prefix: str, folder: Path | None, number: int, state: Any) -> None:
    """Checks, as `check_losses`, the state to be saved after `number` rounds: the last step may have broken it.

    Raises:
      Diverged: the state contains NaN or infinity.
    """
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)):
        raise Diverged(f'{prefix}weights are infinite or NaN after round {number}{STOPPED}{_advice(folder)}')


def _advice(folder: Path | None) -> str:
    """Says which checkpoint is kept, and what may help."""
    advice = 'a lower config.lr (or a higher config.temperature) may help'
    if folder is None:
        return advice[0].upper() + advice[1:]
    saved = checkpoint.rounds_saved(folder / 'checkpoints')
    status = f'The checkpoint of round {saved[-1]} is kept' if saved else 'There was no checkpoint yet'
    return f'{status} in {folder}; {advice}'
