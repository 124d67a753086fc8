"""Scores on the test or the validation images, counted in one jitted call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from semisfl_jax.core import machine
from semisfl_jax.core.types import Array
from semisfl_jax.tasks import Task

Scores = dict[str, dict[str, float]]  # {output of `predict`: {score: value}}


class Batches(NamedTuple):
    """A set of images in n batches of B."""

    images: Array  # [n, B, H, W, C] uint8
    truths: dict[str, Array]  # by task, [n, B, ...]
    valid: Array  # [n, B] bool: which rows count
    sizes: Array | None  # [n, B, 2] int32, height and width of the truths if these are not as large as the images


def compile_evaluate(
    predict: Callable[[Any, Array], dict[str, Any]],
    like: Any,
    inputs: Any,
    task_of: Callable[[str], Task],
    jit: Callable = machine.jit,
) -> Callable[[Any, Any], Scores]:
    """Compiles the evaluation.

    Args:
      predict: (state, images [B, H, W, C] uint8) -> {name: outputs of a task, as in `types.Predict`}.
      like: a state, or its shapes.
      inputs: what `batched` returns, or others of the same shapes.
      task_of: name of an output -> its task.
      jit: `compilation.jit`, possibly with settings applied.

    Returns:
      (what `batched` returns, state) -> {name: {score: value}}, computed from exact counts. Of several models, the mean
      and the best.
    """
    compiled = jit(counting(predict, task_of)).lower(like, inputs).compile()

    def evaluate(inputs: Any, state: Any) -> Scores:
        counted = jax.device_get(compiled(state, inputs))
        return {name: _scores(task_of(name), of_models) for name, of_models in counted.items()}

    return evaluate


def batched(
    images: np.ndarray,
    truth: Mapping[str, np.ndarray],
    batch_size: int,
    place: Callable[[np.ndarray], Array],
    sizes: np.ndarray | None = None,
) -> Batches:
    """A set of images in batches, of which the last is filled with rows that do not count.

    Args:
      images: [T, H, W, C] uint8.
      truth: {name of a task: [T, ...]}, of all tasks that are scored.
      batch_size: B, at most T.
      place: puts an array on the devices of the state.
      sizes: [T, 2] int32, height and width of the truths, if they have sizes of their own.
    """
    count = len(images)
    batch_size = min(batch_size, count)
    batches = -(-count // batch_size)
    filled = np.arange(batches * batch_size) % count
    shape = (batches, batch_size)

    def of_rows(rows: np.ndarray) -> Array:
        return place(rows[filled].reshape(*shape, *rows.shape[1:]))

    truths = {name: of_rows(rows) for name, rows in truth.items()}
    valid = place((np.arange(len(filled)) < count).reshape(shape))
    return Batches(of_rows(images), truths, valid, None if sizes is None else of_rows(sizes))


def counting(predict: Callable[[Any, Array], dict[str, Any]], task_of: Callable[[str], Task]) -> Callable:
    """The function to compile, arguments as in `compile_evaluate`: (state, what `batched` returns) -> counts."""

    def counts(state: Any, inputs: Batches) -> dict[str, list[Any]]:
        def one(batch: Batches) -> dict[str, list[Any]]:
            counted = {}
            for name, outputs in predict(state, batch.images).items():
                task = task_of(name)
                of_batch = batch.truths[task.name], batch.valid, batch.sizes
                counted[name] = [task.scorer.count(x, *of_batch) for x in _models(outputs)]
            return counted

        return jax.lax.map(one, inputs)

    return counts


def _models(outputs: Any) -> tuple[Array, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _scores(task: Task, counts: list[Any]) -> dict[str, float]:
    """Of one model; of several, the mean of each score and, beside it, the best of the one that counts."""
    of_models = [task.scorer.finish(count) for count in counts]
    if len(of_models) == 1:
        return of_models[0]
    means = {name: float(np.mean([scores[name] for scores in of_models])) for name in of_models[0]}
    values = [scores[task.score.name] for scores in of_models]
    return {**means, f'{task.score.name}_best': task.score.best(values)}
