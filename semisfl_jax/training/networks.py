"""The model that a configuration names, for the shapes of a data set."""

from __future__ import annotations

from typing import Any

import jax
from ml_collections import ConfigDict

from semisfl_jax import data, models
from semisfl_jax import tasks as tasks_lib
from semisfl_jax.algorithms.task_model import TaskModel
from semisfl_jax.core import rng


def build(config: ConfigDict, outline: data.Outline, axes: tuple[str, ...] = ()) -> Any:
    """The model of a configuration: a `models.SplitModel`, or for dense tasks a tuple of `TaskModel`.

    Args:
      config: resolved.
      outline: shapes of the data set.
      axes: names of the device axes over which BatchNorm statistics are averaged.

    Raises:
      UserError: the model does not fit the images, or a file of weights does not fit the model.
    """
    if config.data.tasks:
        models_ = tuple(_of_task(config, outline, name) for name in config.data.tasks)
        # All tasks begin with one encoder, the first model's (`init_models`).
        return (_pretrained(models_[0], config.model.weights), *models_[1:])
    return models.build(
        config.model.name,
        outline.classes,
        outline.image,
        config.model.split_index,
        config.model.projection,
        config.model.projection_dim,
        config.model.convolution,
        _dtype(config),
        axes=axes,
        batch_norm_variance=config.model.batch_norm_variance,
        recompute=config.model.recompute,
    )


def _of_task(config: ConfigDict, outline: data.Outline, name: str) -> TaskModel:
    """The model of a dense task."""
    net, outputs = config.model, outline.outputs[name]
    model = models.build_dense(
        net.name,
        outputs,
        outline.image,
        net.convolution,
        _dtype(config),
        net.batch_norm_variance,
        net.output_stride,
        net.recompute,
    )
    return TaskModel(tasks_lib.make(name, outputs), model)


def _pretrained(of_task: TaskModel, file: str) -> TaskModel:
    """The model with the encoder of a file; '' leaves it as it is."""
    if not file:
        return of_task
    init = of_task.model.init
    encoder = models.load_encoder(file, jax.eval_shape(init, rng.root(0)).bottom)
    return of_task._replace(model=of_task.model._replace(init=lambda key: init(key)._replace(bottom=encoder)))


def _dtype(config: ConfigDict) -> str:
    return 'bfloat16' if config.precision == 'bfloat16' else 'float32'
