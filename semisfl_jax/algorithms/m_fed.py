"""M-Fed (Zhou et al., Multi-task Federated Learning with Encoder-Decoder Structure): tasks share an encoder.

Clients have one dense task each. Their models are averaged within a task, and across tasks every client's encoder is
drawn to the mean encoder.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import Flat, Look, Method
from semisfl_jax.algorithms.ranges import LR, linear, log
from semisfl_jax.algorithms.registry import register
from semisfl_jax.algorithms.task_model import TaskModel, init_models, join, part
from semisfl_jax.core import rng, sampling, trees
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from semisfl_jax.core.keys import key as option
from semisfl_jax.core.state import trainable, with_parameters
from semisfl_jax.core.types import (
    Algorithm,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    LossValue,
    Metrics,
    SplitParams,
    Views,
)


@dataclasses.dataclass(frozen=True)
class MFedOptions:
    """`config.mfed`."""

    weight: float = option(
        0.0001,
        'lambda_0: weight of the distance between encoders in the first round; the paper gives no value; of those '
        'tried on scenes of digits, all larger ones cost accuracy (docs/results.md)',
        at_least=0.0,
    )
    growth: float = option(
        1.05,
        'rho: factor by which lambda grows from round to round ("an exponential growth trend"); the paper gives no '
        'value; 1: constant',
        above=0.0,
        idle={'mfed.weight': 0},
    )
    max_weight: float = option(
        1.0,
        'largest lambda, beyond which it grows no further; the paper names no bound, and without one lambda is 3.9e6 '
        'after 500 rounds',
        above=0.0,
        idle={'mfed.weight': 0},
    )
    penalty: str = option(
        'squared',
        "distance between encoder and mean encoder g in a client's loss: 'squared', lambda / 2 ||w - g||^2, whose "
        "gradient is that of the paper's proof | 'norm', lambda ||w - g||, its Eq. (6)",
        choices=('squared', 'norm'),
        idle={'mfed.weight': 0},
    )


def m_fed(models: Sequence[TaskModel], views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds M-Fed.

    One round (Algorithm 1): a client of task k receives the model w_k of its task and the encoder g; from w_k, it makes
    its local epochs on the loss of its task plus a penalty on the distance between its encoder and g; the server
    averages the models of every task over its clients, and g is the mean of the encoders of all tasks (Eq. 4).

    The penalty is lambda_t / 2 ||w* - g||^2 with the lambda_t of `penalty_weight`, over the encoder's parameters;
    `mfed.penalty` 'norm' takes the distance itself. BatchNorm's statistics are averaged within the task, with all else,
    and are in neither penalty nor g.

    `State.server` is g; outputs are those of the task's model. The headline is the first of `data.tasks`.
    The clients that `axis` maps over are those of one task at a time.
    """
    options, weight = hparams.options, hparams.options.weight

    def init(key: Array) -> core.State:
        return init_state(init_models(key, models), server=weight > 0)

    def round_(
        key: Array, state: core.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[core.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        pull = (penalty_weight(options, state.round), state.server) if weight else None

        def train(of_task: TaskModel) -> tuple[SplitParams, Metrics]:
            received = part(state.student, of_task.task.name)
            inputs, weights, images = plan(key, state, federation, cohort, hparams, models, of_task)

            def one(inputs: core.ClientInput) -> core.ClientOutput:
                loss = build_loss(of_task, views, hparams, inputs, images, pull)
                student, _, *reported = core.local_sgd(loss, received, (), optimizer(hparams, lr), inputs.steps)
                return core.ClientOutput(student, (), *reported)

            return collect(axis.map(one)(inputs), weights, received, axis)

        averaged, measured = {}, {}
        for of_task in models:
            averaged[of_task.task.name], measured[of_task.task.name] = train(of_task)
        server = mean_encoder(averaged) if weight else state.server
        state = state.replace(round=state.round + 1, student=join(averaged), server=server)
        of_penalty = {'penalty_weight': pull[0]} if pull else {}
        return state, {'lr': lr, **of_penalty, **metrics(measured)}

    def predict(state: core.State, images: Array) -> dict[str, Array]:
        return {task.name: core.predict(model, views, part(state.student, task.name), images) for task, model in models}

    tasks = {task.name: task for task, _ in models}
    return Algorithm(init, round_, predict, headline=next(iter(tasks)), tasks=tasks)


def penalty_weight(options: MFedOptions, index: Array) -> Array:
    """lambda_t = min(lambda_0 rho^t, `max_weight`) in round `index` [] int32, t from 0; `weight` is above 0."""
    t = index.astype(jnp.float32)
    if options.growth > 1:  # no power beyond the one that reaches the bound: a higher one would overflow
        t = jnp.minimum(t, float(math.ceil(math.log(options.max_weight / options.weight) / math.log(options.growth))))
    return jnp.minimum(options.weight * options.growth**t, options.max_weight)


def init_state(models: Mapping[str, SplitParams], server: bool, clients: Any = ()) -> core.State:
    """The state before the first round; `server`: whether it keeps the encoder g, which is the one that all tasks start
    with. Their mean would differ from it by rounding, and the penalty 'norm' would pull along the difference."""
    encoder = next(iter(models.values())).bottom['params']
    return core.State(
        round=jnp.zeros((), jnp.int32),
        step=jnp.zeros((), jnp.int32),
        student=join(models),
        teacher=(),
        clients=clients,
        server=encoder if server else (),
    )


def mean_encoder(models: Mapping[str, SplitParams]) -> Any:
    """g: the parameters of the encoders, averaged over tasks (Eq. 4)."""
    encoders = [model.bottom['params'] for model in models.values()]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *encoders)


def plan(
    key: Array,
    state: core.State,
    federation: Federation,
    cohort: Cohort,
    hparams: HParams,
    models: Sequence[TaskModel],
    of_task: TaskModel,
) -> tuple[core.ClientInput, core.ClientWeights, Federation]:
    """Inputs and weights of the local clients of one of T tasks, as of `core.plan` with a leading axis [A / T], and the
    federation of the task's clients alone, to which the ids and rows in the inputs refer."""
    names = [task.name for task, _ in models]
    key, federation, cohort = sampling.of_task(key, federation, cohort, names, of_task.task.name)
    return *core.plan(key, state, federation, cohort, hparams), federation


def build_loss(
    of_task: TaskModel,
    views: Views,
    hparams: HParams,
    inputs: core.ClientInput,
    federation: Federation,
    pull: tuple[Array, Any] | None,
) -> core.ClientLoss:
    """A client's loss: that of its task on weak views and, with `pull`, the penalty on its encoder.

    `federation` is that of the task's clients, with targets [M, H, W] uint8; `pull` is (lambda_t [], g, the parameters
    of the mean encoder), or None for no penalty.
    """
    task, model = of_task

    def loss(parameters: SplitParams, student: SplitParams, companion: Any, t: Array) -> LossValue:
        key, rows = rng.fold(inputs.key, t), inputs.rows[t]
        targets = {task.name: federation.client_targets[task.name][rows]}
        images, targets = views.together(rng.fold(key, 'view'), federation.client_images[rows], targets)
        student = with_parameters(student, parameters)
        out, student = core.forward(model, student, views.normalize(images), rng.fold(key, 'dropout'), True)
        value = task.loss(out, targets[task.name])
        means = {'loss': value}
        if pull:
            strength, encoder = pull
            squared = trees.squared_distance(parameters.bottom, encoder)
            distance = jnp.sqrt(jnp.where(squared > 0, squared, 1.0)) * (squared > 0)  # its gradient at 0 is 0
            value = value + strength * (0.5 * squared if hparams.options.penalty == 'squared' else distance)
            means['distance'] = jax.lax.stop_gradient(distance)
        return value, (student, means, {})

    return loss


def collect(
    work: core.ClientOutput, weights: core.ClientWeights, otherwise: Any, axis: ClientAxis
) -> tuple[Any, Metrics]:
    """The average of the models of a task, `otherwise` if no client is left, and its metrics, NaN in that case."""
    averaged, measured = core.collect(work, weights, otherwise, axis)
    anyone = axis.psum(jnp.sum(weights.weight)) > 0
    return averaged, {name: jnp.where(anyone, value, jnp.nan) for name, value in measured.items()} | {'anyone': anyone}


def metrics(measured: Mapping[str, Metrics]) -> Metrics:
    """The metrics of a round from those of each task: the loss of every task, and means over tasks that had clients."""
    values = {f'{name}_loss': of_task['loss'] for name, of_task in measured.items()}
    for name, key in {'loss_local': 'loss', 'encoder_distance': 'distance'}.items():
        if all(key in of_task for of_task in measured.values()):
            of_all, anyone = (jnp.stack([of_task[each] for of_task in measured.values()]) for each in (key, 'anyone'))
            values[name] = jnp.mean(of_all, where=anyone)  # NaN if a task diverged
    return values


def check(flat: Flat) -> None:
    """Raises UserError for a setting that no method of dense tasks can use, or a lambda that is never reached."""
    if flat['augment.supervised'] != 'weak':
        why = 'targets of dense tasks follow flips, crops, scales and rotations alone'
        raise UserError(f"config.augment.supervised='{flat['augment.supervised']}': {why}; use 'weak'")
    weight, most = flat.get('mfed.weight', 0.0), flat.get('mfed.max_weight', 1.0)  # `mfed_fl` has neither
    if weight > most:
        raise UserError(f'config.mfed.weight={weight} is above mfed.max_weight={most}, the bound of lambda; lower it')


def official(flat: Flat) -> dict[str, Any]:
    """M-Fed's own experiments (Zhou et al., 2025, Section 5.1), for the method and what it is compared with.

    Data sets other than COCO get the values of PASCAL-Context. All clients are active, as none is said to be absent.
    The paper says nothing of optimizer, learning rate, batches, views and lambda: they stay those of the configuration.
    configs/pascal_context.py has those of published implementations of multi-task learning (docs/ledger.md).
    """
    coco = flat['data.name'].startswith('coco')
    values = {
        'local.epochs': 1 if coco else 5,
        'rounds': 12 if coco else 20,
        'lr_rounds': 0,  # 0: decays over all rounds
        'federation.partition': 'uniform',
        'pre_rounds': 0,
        'model.batch_norm_variance': 'unbiased',
        **NEEDS,
    }
    if clients := CLIENTS_OF_A_TASK * len(flat['data.tasks']):
        values |= {'federation.num_clients': clients, 'federation.num_active': clients}
    return values


def price(context: costs.CostContext) -> costs.ClientCost:
    """The model of its task and the encoder g down; its model up. Without penalty, g stays at the server."""
    encoder = context.pieces.bottom_parameters if getattr(context.hparams.options, 'weight', 0) else 0
    pieces = [context.of_tasks[task] for task in np.atleast_1d(context.tasks)]
    whole = np.array([piece.whole_bytes for piece in pieces])
    work = np.array([piece.whole_work.train for piece in pieces])
    return costs.ClientCost(download=whole + encoder, upload=whole, step_work=context.hparams.batch_size * work)


CLIENTS_OF_A_TASK = 5  # in the paper
NEEDS = {'data.client_labels': -1, 'k_s': 0, 'augment.supervised': 'weak'}
METHOD = register(
    Method(
        name='m_fed',
        build=m_fed,
        title='M-Fed',
        source='Zhou et al., Multi-task Federated Learning with Encoder-Decoder Structure: Enabling Collaborative '
        'Learning Across Different Tasks, arXiv 2504.09800',
        options=MFedOptions,
        group='mfed',
        uses=('local', 'sampling', 'tasks'),
        needs=NEEDS,
        server='none',
        labels_alone=lambda flat: True,
        by_images=True,
        dense=True,
        in_parts=True,
        check=check,
        official=official,
        price=price,
        metrics={
            'penalty_weight': 'lambda of the round',
            'encoder_distance': "mean distance between a client's encoder and g, over its iterations",
        },
        look=Look('#882266', 'o', '-'),
        ranges={
            'lr': LR,
            'mfed.weight': log(1e-6, 1e-2),  # two decades to either side; its paper gives no value
            'mfed.growth': linear(1.0, 1.1),  # from constant to twice the growth
        },
    )
)


# --- traditional federated learning in its comparison: FedAvg within every task, nothing across tasks


def mfed_fl(models: Sequence[TaskModel], views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds M-Fed with lambda_0 = 0: as many separate runs of FedAvg as there are tasks. Arguments as in `m_fed`."""
    return m_fed(models, views, dataclasses.replace(hparams, options=MFedOptions(weight=0.0)), axis)


MFED_FL = register(
    dataclasses.replace(
        METHOD,
        name='mfed_fl',
        build=mfed_fl,
        title='FL per task',
        options=None,  # lambda_0 is 0
        group='',
        metrics={},
        look=Look('#33A0A0', 's', '--'),
        ranges={'lr': LR},
    )
)


# --- local training in its comparison: every client trains a model of its own, and nothing is exchanged


class Kept(NamedTuple):
    """What the clients of a task keep, leaves [N / T, ...]."""

    model: SplitParams
    optimizer: Any  # its state; () with `local.optimizer_state` 'fresh'


def mfed_local(models: Sequence[TaskModel], views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds local training: a round is one of `m_fed` without its exchange, so that clients do the same work.

    `State.clients` is {task: Kept}; all models start from the same weights. Optimizers continue from round to round,
    since rounds mean nothing to a client that exchanges nothing. Outputs of a task are those of all its clients'
    models, and its score is the mean over them; the best stands beside it. `State.student` stays what it was before the
    first round. Arguments as in `m_fed`.
    """
    tasks = {task.name: task for task, _ in models}
    of_each = hparams.num_clients // len(tasks)

    def start(model: SplitParams) -> Kept:
        kept = hparams.local.optimizer_state == 'kept'
        return Kept(model, optimizer(hparams, jnp.float32(hparams.lr)).init(trainable(model)) if kept else ())

    def init(key: Array) -> core.State:
        common = init_models(key, models)
        clients = {name: trees.replicate(start(model), of_each) for name, model in common.items()}
        return init_state(common, server=False, clients=clients)

    def round_(
        key: Array, state: core.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[core.State, Metrics]:
        lr = learning_rate(hparams, state.round)

        def train(of_task: TaskModel) -> tuple[Kept, Metrics]:
            clients = state.clients[of_task.task.name]
            inputs, weights, images = plan(key, state, federation, cohort, hparams, models, of_task)

            def one(inputs: core.ClientInput, kept: Kept) -> core.ClientOutput:
                loss = build_loss(of_task, views, hparams, inputs, images, pull=None)
                model, moments, *reported = core.local_sgd(loss, *kept, optimizer(hparams, lr), inputs.steps)
                return core.ClientOutput((), Kept(model, moments), *reported)

            work = axis.map(one)(inputs, trees.gather(clients, inputs.id))
            clients = trees.scatter(clients, inputs.id, work.client_state, weights.weight, axis.all_gather)
            return clients, collect(work, weights, (), axis)[1]

        clients, measured = {}, {}
        for of_task in models:
            clients[of_task.task.name], measured[of_task.task.name] = train(of_task)
        return state.replace(round=state.round + 1, clients=clients), {'lr': lr, **metrics(measured)}

    def predict(state: core.State, images: Array) -> dict[str, tuple[Array, ...]]:
        def of_clients(of_task: TaskModel) -> tuple[Array, ...]:
            one = partial(core.predict, of_task.model, views, images=images)
            return tuple(jax.lax.map(one, state.clients[of_task.task.name].model))

        return {of_task.task.name: of_clients(of_task) for of_task in models}

    return Algorithm(init, round_, predict, headline=next(iter(tasks)), tasks=tasks)


def price_local(context: costs.CostContext) -> costs.ClientCost:
    """Nothing is sent."""
    return price(context)._replace(download=0, upload=0)


register(
    dataclasses.replace(
        MFED_FL,
        name='mfed_local',
        build=mfed_local,
        title='Local',
        uses=(*METHOD.uses, 'kept optimizers'),
        keeps_optimizers=True,
        price=price_local,
        look=Look('#AA8800', '^', ':'),
    )
)
