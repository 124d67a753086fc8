"""Scores on the test or the validation images, counted in one jitted call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from semisfl_jax.parallel import compilation
from semisfl_jax.tasks import Task
from semisfl_jax.types import Array

Scores = dict[str, dict[str, float]]  # {output of `predict`: {score: value}}


def make_evaluate(
    predict: Callable[[Any, Array], dict[str, Any]],
    like: Any,
    images: np.ndarray,
    truth: Mapping[str, np.ndarray],
    task_of: Callable[[str], Task],
    batch_size: int,
    jit: Callable = compilation.jit,
    place: Callable[[np.ndarray], Array] = jax.device_put,
) -> Callable[[Any], Scores]:
    """Places the images on the device and compiles the evaluation, as `compile_evaluate` for a single set of images.

    Args:
      predict: (state, images [B, H, W, C] uint8) -> {name: outputs of a task, as in `types.Predict`}.
      like: a state, or its shapes.
      images: [T, H, W, C] uint8. The last batch is padded with rows that are not counted.
      truth: {name of a task: [T, ...]}, of all tasks that are scored.
      task_of: name of an output -> its task.
      batch_size: B.
      jit: `compilation.jit`, possibly with settings applied.
      place: puts an array on the devices of the state.

    Returns:
      state -> {name: {score: value}}, computed from exact counts. Of several models, the mean and the best.
    """
    inputs = batched(images, truth, batch_size, place)
    return partial(compile_evaluate(predict, like, inputs, task_of, jit), inputs)


def compile_evaluate(
    predict: Callable[[Any, Array], dict[str, Any]],
    like: Any,
    inputs: Any,
    task_of: Callable[[str], Task],
    jit: Callable = compilation.jit,
) -> Callable[[Any, Any], Scores]:
    """Compiles the evaluation for images like `inputs`, from `batched`; other arguments as in `make_evaluate`.

    Returns:
      (what `batched` returns, state) -> {name: {score: value}}.
    """
    compiled = jit(counting(predict, task_of)).lower(like, inputs).compile()

    def evaluate(inputs: Any, state: Any) -> Scores:
        counted = jax.device_get(compiled(state, inputs))
        return {name: _scores(task_of(name), of_models) for name, of_models in counted.items()}

    return evaluate


def batched(
    images: np.ndarray, truth: Mapping[str, np.ndarray], batch_size: int, place: Callable[[np.ndarray], Array]
) -> tuple[Array, dict[str, Array], Array]:
    """Images in batches, arguments as in `make_evaluate`: images [n, B, H, W, C], truths [n, B, ...], and which
    rows count [n, B] bool."""
    count = len(images)
    batch_size = min(batch_size, count)
    batches = -(-count // batch_size)
    filled = np.arange(batches * batch_size) % count
    shape = (batches, batch_size)

    def of_rows(rows: np.ndarray) -> Array:
        return place(rows[filled].reshape(*shape, *rows.shape[1:]))

    truths = {name: of_rows(rows) for name, rows in truth.items()}
    return of_rows(images), truths, place((np.arange(len(filled)) < count).reshape(shape))


def counting(predict: Callable[[Any, Array], dict[str, Any]], task_of: Callable[[str], Task]) -> Callable:
    """The function to compile, arguments as in `make_evaluate`: (state, what `batched` returns) -> counts."""

    def counts(state, inputs):
        def one(batch):
            batch_images, batch_truths, valid = batch
            counted = {}
            for name, outputs in predict(state, batch_images).items():
                task = task_of(name)
                counted[name] = [task.scorer.count(x, batch_truths[task.name], valid) for x in _models(outputs)]
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
