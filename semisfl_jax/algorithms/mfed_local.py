"""Local training in the comparison of M-Fed: every client trains a model of its own, and nothing is exchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax import core, costs
from semisfl_jax.algorithms import m_fed, mfed_fl
from semisfl_jax.algorithms.method import Look
from semisfl_jax.algorithms.registry import register
from semisfl_jax.algorithms.task_model import TaskModel, init_models
from semisfl_jax.core import trees
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from semisfl_jax.core.state import trainable
from semisfl_jax.core.types import (
    LOCAL_CLIENTS,
    Algorithm,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    Metrics,
    SplitParams,
    Views,
)


class Kept(NamedTuple):
    """What the clients of a task keep, leaves [N / T, ...]."""

    model: SplitParams
    optimizer: Any  # its state; () with `local.optimizer_state` 'fresh'


def mfed_local(
    models: Sequence[TaskModel], views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS
) -> Algorithm:
    """Builds local training: a round is one of `m_fed` without its exchange, so that clients do the same work.

    `State.clients` is {task: Kept}; all models start from the same weights. Optimizers continue from round to round,
    since rounds mean nothing to a client that exchanges nothing. Outputs of a task are those of all its clients'
    models, and its score is the mean over them; the best stands beside it. `State.student` stays what it was before the
    first round. Arguments as in `m_fed`.
    """
    names = tuple(task.name for task, _ in models)
    of_each = hparams.num_clients // len(names)

    def keep(model: SplitParams) -> Kept:
        kept = hparams.local.optimizer_state == 'kept'
        return Kept(model, optimizer(hparams, jnp.float32(hparams.lr)).init(trainable(model)) if kept else ())

    def init(key: Array) -> core.State:
        start = init_models(key, models)
        clients = {name: trees.replicate(keep(model), of_each) for name, model in start.items()}
        return m_fed.init_state(start, server=False, clients=clients)

    def round_(
        key: Array, state: core.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[core.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        clients, measured = dict(state.clients), {}
        for of_task in models:
            name = of_task.task.name
            inputs, weights, images = m_fed.plan(key, state, federation, cohort, hparams, names, name)

            def one(
                inputs: core.ClientInput,
                kept: Kept,
                of_task: TaskModel = of_task,
                images: Federation = images,
            ) -> core.ClientOutput:
                loss = m_fed.build_loss(of_task, views, hparams, inputs, images, pull=None)
                model, state, means, counts = core.local_sgd(
                    loss, kept.model, kept.optimizer, optimizer(hparams, lr), inputs.steps
                )
                return core.ClientOutput((), Kept(model, state), means, counts)

            work = axis.map(one)(inputs, trees.gather(clients[name], inputs.id))
            clients[name] = trees.scatter(clients[name], inputs.id, work.client_state, weights.weight, axis.all_gather)
            _, measured[name] = m_fed.collect(work, weights, (), axis)
        state = state.replace(round=state.round + 1, clients=clients)
        return state, {'lr': lr, **m_fed.metrics(measured)}

    def predict(state: core.State, images: Array) -> dict[str, tuple[Array, ...]]:
        def of_clients(of_task: TaskModel) -> tuple[Array, ...]:
            def one(variables: SplitParams) -> Array:
                return core.predict(of_task.model, views, variables, images)

            return tuple(jax.lax.map(one, state.clients[of_task.task.name].model))

        return {of_task.task.name: of_clients(of_task) for of_task in models}

    return Algorithm(init, round_, predict, headline=names[0], tasks={task.name: task for task, _ in models})


def price(context: costs.CostContext) -> costs.ClientCost:
    """Nothing is sent."""
    return m_fed.whole_models(context, exchange=False)


METHOD = register(
    dataclasses.replace(
        mfed_fl.METHOD,
        name='mfed_local',
        build=mfed_local,
        title='Local',
        uses=(*m_fed.METHOD.uses, 'kept optimizers'),
        keeps_optimizers=True,
        price=price,
        look=Look('#AA8800', '^', ':'),
    )
)
