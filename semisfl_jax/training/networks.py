"""The model that a configuration names, for the shapes of a data set."""

from __future__ import annotations

from typing import Any

import jax
from ml_collections import ConfigDict

from semisfl_jax import data, models, phases, rng
from semisfl_jax import tasks as tasks_lib


def build(config: ConfigDict, outline: data.Outline, axes: tuple[str, ...] = ()) -> Any:
    """The model of a configuration: a `models.SplitModel`, or for dense tasks a tuple of `phases.TaskModel`.

    Args:
      config: resolved.
      outline: shapes of the data set.
      axes: names of the device axes over which BatchNorm statistics are averaged.

    Raises:
      UserError: the model does not fit the images, or a file of weights does not fit the model.
    """
    if config.data.tasks:
        return tuple(_of_task(config, outline, name) for name in config.data.tasks)
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


def _of_task(config: ConfigDict, outline: data.Outline, name: str) -> phases.TaskModel:
    """The model of a dense task, its encoder from a file if there is one."""
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
    if net.weights:
        encoder = models.load_encoder(net.weights, jax.eval_shape(model.init, rng.root(0)).bottom)
        init = model.init
        model = model._replace(init=lambda key: init(key)._replace(bottom=encoder))
    return phases.TaskModel(tasks_lib.make(name, outputs), model)


def _dtype(config: ConfigDict) -> str:
    return 'bfloat16' if config.precision == 'bfloat16' else 'float32'
