"""What a run checks while it trains: what a method, which may be a user's, returns, and that numbers are finite."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import tasks as tasks_lib
from semisfl_jax.config import failures
from semisfl_jax.core.errors import Diverged, UserError, found
from semisfl_jax.core.hparams import shared_defaults
from semisfl_jax.core.types import MODELS, Algorithm, Array, MethodState, Metrics, Predict
from semisfl_jax.costs import Clients, RoundCost
from semisfl_jax.training import checkpoint

# What the loop itself writes to a line of metrics.jsonl, beside scores
WRITTEN = (
    *('round', 'k_s', *RoundCost._fields, 'wall_seconds', 'images_per_second'),
    *('clients', 'clients_failed', 'fake', 'validation'),
)
_STOPPED = ': stopped. '


def check_algorithm(method: str, algorithm: Algorithm) -> Algorithm:
    """`algorithm` of a method, with `init` and `round` checked while they are traced; its numbers are the same.

    Raises:
      UserError: when called: `init` returns no state; a round returns something else than a state and scalars, or a
        state of other shapes, types or structure than it takes.
    """

    @functools.wraps(algorithm.init)
    def init(key: Array) -> MethodState:
        state = algorithm.init(key)
        if not hasattr(state, 'student') or _kind(getattr(state, 'round', None)) != 'int32 []':
            raise UserError(
                f"method '{method}': init returns {found(state)}; return a state with round [] int32 and student, such "
                'as core.init_state(key, model)'
            )
        return state

    @functools.wraps(algorithm.round)
    def round_(key: Array, state: MethodState, *inputs: Any) -> tuple[MethodState, Metrics]:
        returned = algorithm.round(key, state, *inputs)
        check_round(method, state, returned)
        return returned[0], dict(returned[1])

    return algorithm._replace(init=init, round=round_)


def check_round(method: str, state: MethodState, returned: Any) -> None:
    """Compares what a round returned, arrays or their shapes, with the state that it took and a dict of scalars.

    Raises:
      UserError: they differ, or a metric has a name that the loop itself writes.
    """
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        raise UserError(f"method '{method}': a round returns {found(returned)}; return the state and a dict of metrics")
    after, metrics = returned
    for name, value in metrics.items():
        if name in WRITTEN or tasks_lib.split_key(name):
            raise UserError(f"method '{method}': the loop itself writes '{name}'; give the metric another name")
        if not _kind(value).endswith(' []'):
            raise UserError(f"method '{method}': metric '{name}' is {_kind(value)}; return a scalar, such as a mean")
    if difference := _difference(state, after):
        raise UserError(
            f"method '{method}': a round takes {difference}; return a state of the same structure, shapes and types"
        )


def check_counted(method: str, counted: Any, rounds: int) -> None:
    """Makes sure that `state.round`, on the host, [R] of several trials, is the number of completed rounds. Learning
    rates and the keys of draws depend on it.

    Raises:
      UserError: it is not.
    """
    if np.any(counted != rounds):
        raise UserError(
            f"method '{method}': after round {rounds} its state has round={np.ravel(counted)[0]}; return "
            'state.replace(round=state.round + 1, ...)'
        )


def check_predict(method: str, algorithm: Algorithm, task_of: Callable[[str], tasks_lib.Task]) -> Predict:
    """`algorithm.predict` of a method, with its outputs checked while it is traced.

    Raises:
      UserError: when called, if outputs have wrong names or shapes, or the headline is none of them.
    """
    known = tuple(algorithm.tasks) or MODELS

    def predict(state: Any, images: Any) -> dict[str, Any]:
        outputs = algorithm.predict(state, images)
        names = set(outputs) if isinstance(outputs, Mapping) else set()
        if algorithm.headline not in names or not names <= set(known):
            returned = f'outputs {sorted(names)}' if names else found(outputs)
            raise UserError(
                f"method '{method}': predict returns {returned}; return a dict of outputs, by some of "
                f"{', '.join(known)}, with the headline '{algorithm.headline}'"
            )
        for name, of_models in outputs.items():
            task = task_of(name)
            wanted = (*images.shape[: 3 if task.dense else 1], task.outputs)
            for output in of_models if isinstance(of_models, tuple) else (of_models,):
                if getattr(output, 'shape', None) != wanted:
                    raise UserError(
                        f"method '{method}': predict returns {found(output)} for '{name}' of {len(images)} images; "
                        f'return {list(wanted)}'
                    )
        return outputs

    return predict


def _kind(value: Any) -> str:
    """An array or a number as shown in a message: 'float32 [2, 10]', or what else it is."""
    try:
        return found(value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value))
    except TypeError:
        return found(value)


def _difference(before: Any, after: Any) -> str:
    """The first difference of two states: 'float32 [2] as state.student and returns float32 [3]'; '' if none."""
    kinds = []
    for state in (before, after):  # also its parts without leaves, such as ()
        leaves = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda part: not jax.tree.leaves(part))
        kinds.append({jax.tree_util.keystr(path): _kind(leaf) for path, leaf in leaves})
    for path in kinds[0] | kinds[1]:
        if (old := kinds[0].get(path, 'nothing')) != (new := kinds[1].get(path, 'nothing')):
            return f'{old} as state{path} and returns {new}'
    structures: list[Any] = [jax.tree.structure(state) for state in (before, after)]  # a list in place of a tuple
    return '' if structures[0] == structures[1] else f'{structures[0]} and returns {structures[1]}'


def without_advice(message: str) -> str:
    """The line of a `Diverged` without its advice: 'loss_supervised is nan in round 4'."""
    return message.partition(_STOPPED)[0]


def check_losses(
    prefix: str,
    folder: Path | None,
    number: int,
    measured: Mapping[str, Any],
    clients: Clients | None,
    config: ConfigDict,
) -> None:
    """Checks the training losses among the metrics of round `number` (1-based).

    `prefix` begins the error message, `folder` is that of the trial, and `clients` is None in a server-only round.

    Raises:
      Diverged: a loss is NaN or infinite.
    """
    every_loss = clients is not None and not failures.lost_all(clients)
    for name, value in measured.items():
        if name.startswith('loss_' if every_loss else 'loss_supervised') and not math.isfinite(value):
            raise Diverged(f'{prefix}{name} is {value} in round {number}{_STOPPED}{_advice(folder, config)}')


def check_weights(prefix: str, folder: Path | None, number: int, state: Any, config: ConfigDict) -> None:
    """As `check_losses`, of the state to be saved after `number` rounds: the last step may have made it non-finite.

    Raises:
      Diverged: the state contains NaN or infinity.
    """
    if not _all_finite(state):
        raise Diverged(f'{prefix}weights are infinite or NaN after round {number}{_STOPPED}{_advice(folder, config)}')


@jax.jit
def _all_finite(state: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats]))


def _advice(folder: Path | None, config: ConfigDict) -> str:
    """What was saved, and which keys may help."""
    advice = 'a lower config.lr may help'
    if config.temperature < shared_defaults()['temperature']:  # logits are divided by it
        advice = f'a higher config.temperature (it is {config.temperature}) or a lower config.lr may help'
    if folder is None:
        return advice[0].upper() + advice[1:]
    saved = checkpoint.rounds_saved(folder / 'checkpoints')
    status = f'The checkpoint of round {saved[-1]} is kept' if saved else 'There was no checkpoint yet'
    return f'{status} in {folder}; {advice}'
