"""What the loop takes for granted of a method, which may be a user's own: what its functions return."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import tasks as tasks_lib
from semisfl_jax.config import failures
from semisfl_jax.core.errors import Diverged, UserError, warn
from semisfl_jax.core.hparams import shared_defaults
from semisfl_jax.core.types import MODELS, Algorithm, Array, MethodState, Metrics, Predict
from semisfl_jax.core.wording import found, nearest
from semisfl_jax.costs import Clients, RoundCost
from semisfl_jax.training import checkpoint

# What the loop itself writes to a line of metrics.jsonl, beside scores
WRITTEN = (
    *('round', 'k_s', *RoundCost._fields, 'wall_seconds', 'images_per_second'),
    *('clients', 'clients_failed', 'fake', 'validation'),
)
_COUNT = 'return state.replace(round=state.round + 1, ...)'


def checked(method: str, algorithm: Algorithm) -> Algorithm:
    """`algorithm` of a method, whose `init` and `round` are checked while they are traced; its numbers are the same.

    Args:
      method: its name.
      algorithm: as built.

    Raises:
      UserError: when called: `init` returns no state; a round returns something else than a state and scalars, a state
        of other shapes, types or structure than it takes, or the number of rounds that it takes.
    """

    @functools.wraps(algorithm.init)
    def init(key: Array) -> MethodState:
        state = algorithm.init(key)
        check_state(method, state)
        return state

    @functools.wraps(algorithm.round)
    def round_(key: Array, state: MethodState, *inputs: Any) -> tuple[MethodState, Metrics]:
        after, metrics = check_round(method, algorithm.round(key, state, *inputs))
        check_carried(method, state, after)
        return after, metrics

    return algorithm._replace(init=init, round=round_)


def check_state(method: str, state: Any) -> None:
    """Makes sure that `init` of a method returned a state.

    Raises:
      UserError: it has no `round` [] int32 or no `student`, or a leaf is not an array.
    """
    advice = 'return a state with round [] int32 and student, such as phases.init_state(key, model, memory=())'
    if not all(hasattr(state, name) for name in ('round', 'student')):
        raise UserError(f"method '{method}': init returns {found(state)}; {advice}")
    if (kind := _kind(state.round)) != 'int32 []':
        raise UserError(f"method '{method}': init returns a state whose round is {kind}; {advice}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if _shape_of(leaf) is None:
            where = f'state{jax.tree_util.keystr(path)}'
            raise UserError(f"method '{method}': init returns {found(leaf)} as {where}; return arrays")


def check_round(method: str, returned: Any) -> tuple[Any, dict[str, Any]]:
    """Makes sure that a round returned a state and metrics, which are returned.

    Args:
      method: name of the method.
      returned: by `Algorithm.round`, or its shapes.

    Raises:
      UserError: it returned something else, a metric is not a scalar, or its name is one that the loop writes.
    """
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
        what = f'{found(returned)}' if not isinstance(returned, tuple) else f'({", ".join(map(found, returned))})'
        raise UserError(f"method '{method}': a round returns {what}; return the state and a dict of metrics")
    state, metrics = returned
    for name, value in metrics.items():
        if name in WRITTEN or tasks_lib.split_key(name):
            raise UserError(f"method '{method}': the loop itself writes '{name}'; give the metric another name")
        if getattr(_shape_of(value), 'shape', None) != ():
            raise UserError(f"method '{method}': metric '{name}' is {_kind(value)}; return a scalar, such as a mean")
    return state, dict(metrics)


def warn_misspelt(method: str, recorded: Collection[str], returned: Collection[str]) -> None:
    """Warns about metrics of a method's record that rounds do not return, where they return one of a similar name; what
    has none may depend on the configuration.

    Args:
      method: its name.
      recorded: names in `Method.metrics`.
      returned: names of the metrics of a round.
    """
    unrecorded = [name for name in returned if name not in recorded]
    for name in recorded:
        if name not in returned and (meant := nearest(name, unrecorded, cutoff=0.75)):
            warn(
                f"method '{method}': its record has the metric '{name}', but its rounds return '{meant}'; correct "
                'metrics of the record'
            )


def check_carried(method: str, before: MethodState, after: Any) -> None:
    """Makes sure that the state that a round returns can be passed to the next one.

    Raises:
      UserError: shapes, types or structure are not those of the state that it took, or `round` is the same.
    """
    taken, given = _kinds(before), _kinds(after)
    for path in taken | given:
        if (old := taken.get(path, 'nothing')) != (new := given.get(path, 'nothing')):
            raise UserError(
                f"method '{method}': a round takes {old} as state{path} and returns {new}; return a state of the same "
                'structure, shapes and types'
            )
    structures: list[Any] = [jax.tree.structure(state) for state in (before, after)]
    if structures[0] != structures[1]:  # such as a list in place of a tuple
        raise UserError(
            f"method '{method}': a round returns a state of another structure than it takes, though of the same "
            'leaves; return state.replace(...), each field with the containers that it had'
        )
    if after.round is before.round:
        raise UserError(f"method '{method}': a round returns the state.round that it takes; {_COUNT}")


def check_counted(method: str, counted: Any, rounds: int) -> None:
    """Makes sure that a method counts its rounds, on which learning rates and the keys of draws depend.

    Args:
      method: its name.
      counted: `state.round`, on the host; [R] of several trials.
      rounds: how many were completed.

    Raises:
      UserError: it has another number.
    """
    if np.any(counted != rounds):
        wrong = int(np.ravel(counted)[np.argmax(np.ravel(counted) != rounds)])
        raise UserError(f"method '{method}': after round {rounds} its state has round={wrong}; {_COUNT}")


def checked_predict(method: str, algorithm: Algorithm, task_of: Callable[[str], tasks_lib.Task]) -> Predict:
    """`algorithm.predict` of a method, with its outputs checked while it is traced.

    Raises:
      UserError: when called, if outputs have wrong names or shapes, or the headline is none of them.
    """

    def predict(state: Any, images: Any) -> dict[str, Any]:
        outputs = algorithm.predict(state, images)
        _check_names(f"method '{method}':", algorithm, outputs)
        for name, of_models in outputs.items():
            task = task_of(name)
            wanted = (*images.shape[: 3 if task.dense else 1], task.outputs)
            for one in of_models if isinstance(of_models, tuple) else (of_models,):
                if getattr(one, 'shape', None) != wanted:
                    raise UserError(
                        f"method '{method}': predict returns {found(one)} for '{name}' of {len(images)} images; return "
                        f'{"maps" if task.dense else "logits"} {list(wanted)}'
                    )
        return outputs

    return predict


def _check_names(whose: str, algorithm: Algorithm, outputs: Any) -> None:
    known = tuple(algorithm.tasks) or MODELS
    if not isinstance(outputs, Mapping) or not outputs:
        what = '{}' if isinstance(outputs, Mapping) else found(outputs)
        raise UserError(f'{whose} predict returns {what}; return a dict of outputs, by some of {", ".join(known)}')
    for name in outputs:
        if name not in known:
            raise UserError(f"{whose} predict returns outputs of '{name}'; name them by some of {', '.join(known)}")
    if algorithm.headline not in outputs:
        raise UserError(
            f"{whose} headline='{algorithm.headline}' is none of the outputs of predict; use one of "
            + ', '.join(outputs)
        )


def _shape_of(value: Any) -> Any:
    """Shape and dtype of an array or a number, traced or not; None of anything else."""
    try:
        return value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)
    except TypeError:
        return None


def _kind(value: Any) -> str:
    """A leaf as shown in a message: 'float32 [2, 10]', or what else it is."""
    return found(value if (shape := _shape_of(value)) is None else shape)


def _kinds(state: Any) -> dict[str, str]:
    """The leaves of a state by path, and its parts without leaves, such as ()."""
    leaves = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda part: not jax.tree.leaves(part))
    return {jax.tree_util.keystr(path): _kind(leaf) for path, leaf in leaves}


# Stops a run at non-finite numbers; its last checkpoint is kept.

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
