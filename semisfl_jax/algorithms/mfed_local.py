"""Local training in the comparison of M-Fed: every client trains a model of its own, and nothing is exchanged."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from semisfl_jax import costs, phases, trees
from semisfl_jax.algorithms import m_fed
from semisfl_jax.algorithms.method import Look, Method, register
from semisfl_jax.hparams import HParams, learning_rate, optimizer
from semisfl_jax.phases.tasks import TaskModel, init_models
from semisfl_jax.types import (
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


def mfed_local(
    models: Sequence[TaskModel], views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS
) -> Algorithm:
    """Builds local training: a round is one of `m_fed` without its exchange, so that clients do the same work.

    `State.clients` are the models, {task: leaves [N / T, ...]}; all start from the same weights. Outputs of a task are
    those of all its clients' models, and its score is the mean over them; the best stands beside it. `State.student`
    stays what it was before the first round. Arguments as in `m_fed`.
    """
    names = tuple(task.name for task, _ in models)
    of_each = hparams.num_clients // len(names)

    def init(key: Array) -> phases.State:
        start = init_models(key, models)
        clients = {name: trees.replicate(model, of_each) for name, model in start.items()}
        return m_fed.init_state(start, server=False, clients=clients)

    def round_(
        key: Array, state: phases.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[phases.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        clients, measured = dict(state.clients), {}
        for of_task in models:
            name = of_task.task.name
            inputs, weights, images = m_fed.plan(key, state, federation, cohort, hparams, names, name)

            def one(
                inputs: phases.ClientInput,
                model: SplitParams,
                of_task: TaskModel = of_task,
                images: Federation = images,
            ) -> phases.ClientOutput:
                loss = m_fed.build_loss(of_task, views, hparams, inputs, images, pull=None)
                model, _, means, counts = phases.local_sgd(loss, model, (), optimizer(hparams, lr), inputs.steps)
                return phases.ClientOutput((), model, means, counts)

            work = axis.map(one)(inputs, trees.gather(clients[name], inputs.id))
            clients[name] = trees.scatter(clients[name], inputs.id, work.client_state, weights.weight, axis.all_gather)
            _, measured[name] = m_fed.collect(work, weights, (), axis)
        state = state.replace(round=state.round + 1, clients=clients)
        return state, {'lr': lr, **m_fed.metrics(measured)}

    def predict(state: phases.State, images: Array) -> dict[str, tuple[Array, ...]]:
        def of_clients(of_task: TaskModel) -> tuple[Array, ...]:
            def one(variables: SplitParams) -> Array:
                return phases.predict(of_task.model, views, variables, images)

            return tuple(jax.lax.map(one, state.clients[of_task.task.name]))

        return {of_task.task.name: of_clients(of_task) for of_task in models}

    return Algorithm(init, round_, predict, headline=names[0], tasks={task.name: task for task, _ in models})


def price(context: costs.CostContext) -> costs.ClientCost:
    """Nothing is sent."""
    return m_fed.whole_models(context, exchange=False)


METHOD = register(
    Method(
        name='mfed_local',
        build=mfed_local,
        title='Local',
        source=m_fed.METHOD.source,
        uses=m_fed.METHOD.uses,
        needs=m_fed.NEEDS,
        server='none',
        labels_alone=lambda flat: True,
        by_images=True,
        dense=True,
        in_parts=True,
        check=m_fed.check,
        official=m_fed.METHOD.official,
        price=price,
        look=Look('#AA8800', '^', ':'),
    )
)
