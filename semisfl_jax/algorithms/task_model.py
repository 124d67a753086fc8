"""Several dense tasks in one state: their models have encoders of one structure and decoders of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from semisfl_jax.core import rng
from semisfl_jax.core.types import Array, SplitParams
from semisfl_jax.models import SplitModel
from semisfl_jax.tasks import Task


class TaskModel(NamedTuple):
    """A task and the model that learns it, cut between encoder and decoder."""

    task: Task
    model: SplitModel


def init_models(key: Array, models: Sequence[TaskModel]) -> dict[str, SplitParams]:
    """The models of all tasks before the first round, by name: one encoder for all, and a decoder for each.

    A task starts with the same weights, whatever the other tasks are; no leaf has an axis of tasks or clients.
    """
    key = rng.fold(key, 'init')
    bottom = models[0].model.init(key).bottom
    tops = {task.name: model.init(rng.fold(key, 'task', task.name)).top for task, model in models}
    return {name: SplitParams(bottom, top, {'params': {}}) for name, top in tops.items()}


def join(models: Mapping[str, SplitParams]) -> SplitParams:
    """The models of all tasks as one, as `State.student` has them: {'params': {task: …}, 'batch_stats': {task: …}}."""

    def piece(variables: Mapping[str, Any]) -> dict[str, Any]:
        kinds = dict.fromkeys(kind for of_task in variables.values() for kind in of_task)
        return {kind: {name: of_task.get(kind, {}) for name, of_task in variables.items()} for kind in kinds}

    names = list(models)
    bottom, top = ({name: getattr(models[name], field) for name in names} for field in ('bottom', 'top'))
    return SplitParams(piece(bottom), piece(top), {'params': {}})


def part(joined: SplitParams, name: str) -> SplitParams:
    """The model of one task: the inverse of `join`."""
    bottom, top = ({kind: of_tasks[name] for kind, of_tasks in piece.items()} for piece in joined[:2])
    return SplitParams(bottom, top, {'params': {}})
