"""What the loop takes for granted of a method, which may be a user's own: what its functions return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from semisfl_jax import tasks as tasks_lib
from semisfl_jax.errors import UserError
from semisfl_jax.training import metrics as metrics_lib
from semisfl_jax.types import MODELS, Algorithm, Predict
from semisfl_jax.wording import found

# What the loop itself writes to a line of metrics.jsonl, beside scores
WRITTEN = ('round', 'k_s', *metrics_lib.COSTS, *metrics_lib.TIMES, 'clients', 'clients_failed', 'fake', 'validation')


def check_round(method: str, returned: Any, trials: tuple[int, ...] = ()) -> tuple[Any, dict[str, Any]]:
    """Makes sure that a round returned a state and metrics, which are returned.

    Args:
      method: name of the method.
      returned: by `Algorithm.round`, or its shapes.
      trials: (R,) if it is of R trials.

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
        if getattr(value, 'shape', None) != trials:
            shape = list(getattr(value, 'shape', ()))[len(trials) :]
            raise UserError(
                f"method '{method}': metric '{name}' is {value.dtype} {shape}; return a scalar, such as a mean"
            )
    return state, dict(metrics)


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
