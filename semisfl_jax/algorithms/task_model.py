"""Several dense tasks in one state: their encoders have one structure, and each task has its own decoder."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax import Array

from semisfl_jax import core
from semisfl_jax.core import rng
from semisfl_jax.tasks import Task


class TaskModel(NamedTuple):
    """A task and the model that learns it, cut between encoder and decoder."""

    task: Task
    model: core.SplitModel


def init_models(key: Array, models: Sequence[TaskModel]) -> dict[str, core.SplitParams]:
    """Initializes the models of all tasks: one encoder for all, and a decoder for each.

    A task starts with the same weights, whatever the other tasks are.

    Args:
      key: the root key of the run.
      models: the tasks with their models.

    Returns:
      {task: model}; no leaf has an axis of tasks or clients.
    """
    key = rng.fold(key, 'init')
    bottom = models[0].model.init(key).bottom
    tops = {task.name: model.init(rng.fold(key, 'task', task.name)).top for task, model in models}
    return {name: core.SplitParams(bottom, top, {'params': {}}) for name, top in tops.items()}


def join(models: Mapping[str, core.SplitParams]) -> core.SplitParams:
    """Joins the models of all tasks into one, for `State.student`: {'params': {task: …}, 'batch_stats': {task: …}}."""

    def piece(variables: Mapping[str, Any]) -> dict[str, Any]:
        kinds = dict.fromkeys(kind for collections in variables.values() for kind in collections)
        return {kind: {name: variables[name].get(kind, {}) for name in variables} for kind in kinds}

    names = list(models)
    bottom, top = ({name: getattr(models[name], field) for name in names} for field in ('bottom', 'top'))
    return core.SplitParams(piece(bottom), piece(top), {'params': {}})


def part(joined: core.SplitParams, name: str) -> core.SplitParams:
    """Extracts the model of the task `name` from the result of `join`."""
    bottom, top = ({kind: by_task[name] for kind, by_task in piece.items()} for piece in joined[:2])
    return core.SplitParams(bottom, top, {'params': {}})
