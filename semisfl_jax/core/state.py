"""The state carried from round to round, and small operations that all phases share."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import struct

from semisfl_jax.core import rng
from semisfl_jax.core.types import Array, Cohort, Federation, Metrics, SplitModel, SplitParams, Variables, Views


class State(struct.PyTreeNode):
    """What server and clients carry from round to round."""

    round: Array  # [] int32, rounds completed
    step: Array  # [] int32, supervised steps over all rounds: the t of the teacher's average
    student: SplitParams
    teacher: Any  # SplitParams; () if the method has none
    queue: Any = ()  # `queue.Queue`; () if the method has no contrastive term
    clients: Any = ()  # what clients keep between their rounds: a pytree with leading [N]; () for nothing
    server: Any = ()  # what the server keeps besides the models; () for nothing
    opt_state: Any = ()  # the server's optimizer state in supervised training; () if every round starts afresh


# The phases of a round. The first argument is the root key; `k_s` [] int32 and `lr` [] float32 may be traced.
# The server trains: key, state, federation, k_s, lr -> state, metrics
ServerPhase: TypeAlias = Callable[[Array, State, Federation, Array, Array], tuple[State, Metrics]]
# Clients and server train one model together: key, state, federation, local clients, lr -> state, metrics
CrossEntityPhase: TypeAlias = Callable[[Array, State, Federation, Cohort, Array], tuple[State, Metrics]]
# Clients train, from broadcast to average: key, state, federation, local clients, lr -> the average of the uploads, the
# new `State.clients`, metrics
LocalPhase: TypeAlias = Callable[[Array, State, Federation, Cohort, Array], tuple[Any, Any, Metrics]]


def init_state(key: Array, model: SplitModel, queue: Any = (), teacher: bool = True, clients: Any = ()) -> State:
    """Builds the state before the first round; the teacher is a copy of the student.

    Args:
      key: the root key.
      model: the split model.
      queue: the memory queue; without one there is no contrastive term and no projection head.
      teacher: whether the method has a teacher.
      clients: what clients keep between their rounds, leaves [N, ...].

    Returns:
      The state at round 0 and step 0.
    """
    student = model.init(rng.fold(key, 'init'))
    if not queue:
        student = student._replace(proj={'params': {}})
    return State(
        round=jnp.zeros((), jnp.int32),
        step=jnp.zeros((), jnp.int32),  # not the array of `round`: the state is donated, each buffer once
        student=student,
        teacher=jax.tree.map(jnp.copy, student) if teacher else (),
        queue=queue,
        clients=clients,
    )


def trainable(variables: SplitParams) -> SplitParams:
    """Returns the parameters, without BatchNorm statistics."""
    return SplitParams(*(piece['params'] for piece in variables))


def with_parameters(variables: SplitParams, parameters: SplitParams) -> SplitParams:
    """Returns `variables` with their parameters replaced."""
    return SplitParams(*({**piece, 'params': new} for piece, new in zip(variables, parameters, strict=True)))


def statistics(variables: SplitParams) -> SplitParams:
    """Returns the BatchNorm statistics alone: the same tree with no parameters."""
    return with_parameters(variables, SplitParams({}, {}, {}))


def num_classes(model: SplitModel, top: Variables) -> int:
    """Returns K, the number of logits that the model has with the variables `top`, without computing anything."""
    features = jax.ShapeDtypeStruct((1, model.feature_size), jnp.float32)
    return jax.eval_shape(lambda x: model.top(top, x, None, False)[0], features).shape[-1]


def after_pre_rounds(pre_rounds: int, run: Callable, skipped: Callable[[State], tuple]) -> Callable:
    """Wraps `run`: calls `skipped` instead in the first `pre_rounds` rounds.

    Args:
      pre_rounds: rounds to skip; with 0, `run` itself is returned.
      run: takes the key, the state and more; returns a tuple that ends with metrics.
      skipped: maps the state to what `run` returns before its metrics.

    Returns:
      A function like `run`, whose metrics are NaN in the skipped rounds.
    """

    def run_or_skip(key: Array, state: State, *others: Any) -> tuple:
        shapes = jax.eval_shape(run, key, state, *others)[-1]
        nothing = {name: jnp.full(value.shape, jnp.nan, value.dtype) for name, value in shapes.items()}
        return jax.lax.cond(
            state.round < pre_rounds, lambda: (*skipped(state), nothing), lambda: run(key, state, *others)
        )

    return run_or_skip if pre_rounds else run


def predict(model: SplitModel, views: Views, variables: SplitParams, images: Array) -> Any:
    """Computes logits [B, K], or what a dense task predicts, of uint8 images [B, H, W, C], in evaluation mode."""
    features, _ = model.bottom(variables.bottom, views.normalize(images), None, False)
    return model.top(variables.top, features, None, False)[0]
