"""M-Fed (Zhou et al., Multi-task Federated Learning with Encoder-Decoder Structure): tasks share an encoder.

Each client has one dense task. Models are averaged within a task; across tasks, a penalty pulls every client's encoder
to the mean encoder.
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
from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Flat, Look, Method, option, ranges, register
from semisfl_jax.algorithms.task_model import TaskModel, init_models, join, part
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import rng, sampling, trees
from semisfl_jax.tasks import PARTS


def m_fed(
    models: Sequence[TaskModel], views: core.Views, hparams: core.HParams, axis: core.ClientAxis
) -> core.Algorithm:
    """Builds M-Fed.

    One round (Algorithm 1): a client of task k receives the model w_k of its task and the encoder g; starting from w_k,
    it runs its local epochs on the loss of its task plus a penalty on the distance between its encoder and g; the
    server averages the models of every task over its clients, and g is the mean of the encoders of all tasks (Eq. 4).

    The penalty is lambda_t / 2 ||w* - g||^2 with the lambda_t of `penalty_weight`, over the encoder's parameters;
    `mfed.penalty` 'norm' takes the distance itself. BatchNorm's statistics are averaged within the task like all other
    variables, and enter neither penalty nor g.

    `State.server` is g. The headline is the first of `data.tasks`.

    Args:
      models: the tasks with their models.
      views: augmentations and normalization.
      hparams: the hyper-parameters, with `MFedOptions` as options.
      axis: the clients of a round; it maps over those of one task at a time.

    Returns:
      The method as pure functions. Its outputs are those of each task's model, by task.
    """
    options, weight = hparams.options, hparams.options.weight
    tasks = {task.name: task for task, _ in models}

    def init(key: Array) -> core.State:
        return init_state(init_models(key, models), server=weight > 0)

    def round_(
        key: Array, state: core.State, federation: core.Federation, cohort: core.Cohort, k_s: Array
    ) -> tuple[core.State, core.Metrics]:
        lr = core.learning_rate(hparams, state.round)
        pull = (penalty_weight(options, state.round), state.server) if weight else None

        def train(task_model: TaskModel) -> tuple[core.SplitParams, core.Metrics]:
            name = task_model.task.name
            received = part(state.student, name)
            key_of_task, images, members = sampling.select_task(key, federation, cohort, list(tasks), name)
            inputs, weights = core.plan(key_of_task, state, images, members, hparams)

            def one(inputs: core.ClientInput) -> core.ClientOutput:
                loss = build_loss(task_model, views, hparams, inputs, images, pull)
                student, _, *reported = core.local_sgd(loss, received, (), core.optimizer(hparams, lr), inputs.steps)
                return core.ClientOutput(student, (), *reported)

            return collect(axis.map(one)(inputs), weights, received, axis)

        averaged, measured = {}, {}
        for task_model in models:
            averaged[task_model.task.name], measured[task_model.task.name] = train(task_model)
        server = mean_encoder(averaged) if weight else state.server
        state = state.replace(round=state.round + 1, student=join(averaged), server=server)
        penalty = {'penalty_weight': pull[0]} if pull else {}
        return state, {'lr': lr, **penalty, **metrics(measured)}

    def predict(state: core.State, images: Array) -> dict[str, Array]:
        return {task.name: core.predict(model, views, part(state.student, task.name), images) for task, model in models}

    return core.Algorithm(init, round_, predict, headline=next(iter(tasks)), tasks=tasks)


def init_state(models: Mapping[str, core.SplitParams], server: bool, clients: Any = ()) -> core.State:
    """Builds the state before the first round.

    Args:
      models: the initial model of each task.
      server: whether to keep g. It starts as the encoder that all tasks share: their mean would differ from it by
        rounding, and the penalty 'norm' would pull along the difference.
      clients: what the clients keep.
    """
    encoder = next(iter(models.values())).bottom['params']
    return core.State(
        round=jnp.zeros((), jnp.int32),
        step=jnp.zeros((), jnp.int32),
        student=join(models),
        teacher=(),
        clients=clients,
        server=encoder if server else (),
    )


def penalty_weight(options: MFedOptions, index: Array) -> Array:
    """Computes lambda_t = min(lambda_0 rho^t, `max_weight`).

    Args:
      options: with `weight` above 0.
      index: [] int32, the round t, from 0.

    Returns:
      lambda_t [].
    """
    t = index.astype(jnp.float32)
    if options.growth > 1:  # stop at the power that reaches the bound, as higher ones would overflow
        t = jnp.minimum(t, float(math.ceil(math.log(options.max_weight / options.weight) / math.log(options.growth))))
    return jnp.minimum(options.weight * options.growth**t, options.max_weight)


def build_loss(
    task_model: TaskModel,
    views: core.Views,
    hparams: core.HParams,
    inputs: core.ClientInput,
    federation: core.Federation,
    pull: tuple[Array, Any] | None,
) -> core.ClientLoss:
    """Builds a client's loss: that of its task on weak views and, with `pull`, the penalty on its encoder.

    Args:
      task_model: the task and its model.
      views: augmentations and normalization.
      hparams: the hyper-parameters.
      inputs: the client and its batches.
      federation: the data of the task's clients, with targets.
      pull: (lambda_t [], g, the parameters of the mean encoder), or None for no penalty.

    Returns:
      The loss of an iteration, for `core.local_sgd`.
    """
    task, model = task_model

    def loss(parameters: core.SplitParams, student: core.SplitParams, teacher: Any, t: Array) -> core.LossValue:
        key, rows = rng.fold(inputs.key, t), inputs.rows[t]
        targets = jax.tree.map(lambda x: x[rows], {task.name: federation.client_targets[task.name]})
        images, targets = views.together(rng.fold(key, 'view'), federation.client_images[rows], targets)
        student = core.with_parameters(student, parameters)
        given = targets[task.name] if task.name in PARTS else None  # of others, the loss is the task's
        x = views.normalize(images)
        out, student = core.forward(model, student, x, rng.fold(key, 'dropout'), True, targets=given)
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
    work: core.ClientOutput, weights: core.ClientWeights, otherwise: Any, axis: core.ClientAxis
) -> tuple[Any, core.Metrics]:
    """Averages the models of a task.

    Args:
      work: the results of the task's local clients.
      weights: the weights of these clients.
      otherwise: the model if no client is left.
      axis: the clients of a round.

    Returns:
      The average, and the task's metrics, NaN if no client is left.
    """
    averaged, measured = core.collect(work, weights, otherwise, axis)
    anyone = axis.psum(jnp.sum(weights.weight)) > 0
    return averaged, {name: jnp.where(anyone, value, jnp.nan) for name, value in measured.items()} | {'anyone': anyone}


def mean_encoder(models: Mapping[str, core.SplitParams]) -> Any:
    """Computes g: the parameters of the encoders, averaged over tasks (Eq. 4)."""
    encoders = [model.bottom['params'] for model in models.values()]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *encoders)


def metrics(measured: Mapping[str, core.Metrics]) -> core.Metrics:
    """Merges the metrics of each task: the loss of every task, and means over the tasks that had clients."""
    values = {f'{task}_loss': reported['loss'] for task, reported in measured.items()}
    for name, key in {'loss_local': 'loss', 'encoder_distance': 'distance'}.items():
        if all(key in reported for reported in measured.values()):
            by_task, anyone = (jnp.stack([one[each] for one in measured.values()]) for each in (key, 'anyone'))
            values[name] = jnp.mean(by_task, where=anyone)  # NaN if a task diverged
    return values


def mfed_fl(
    models: Sequence[TaskModel], views: core.Views, hparams: core.HParams, axis: core.ClientAxis
) -> core.Algorithm:
    """Builds M-Fed with lambda_0 = 0: as many separate runs of FedAvg as there are tasks. Arguments as in `m_fed`."""
    return m_fed(models, views, dataclasses.replace(hparams, options=MFedOptions(weight=0.0)), axis)


def mfed_local(
    models: Sequence[TaskModel], views: core.Views, hparams: core.HParams, axis: core.ClientAxis
) -> core.Algorithm:
    """Builds local training: rounds of `m_fed` without its exchange, so that clients do the same work.

    `State.clients` is {task: Kept}; all models start from the same weights. Optimizers continue from round to round,
    since rounds mean nothing to a client that exchanges nothing. A task's outputs are those of all its clients' models,
    its score is their mean, and the best is reported beside it. `State.student` stays as it was before the first round.

    Args:
      models: the tasks with their models.
      views: augmentations and normalization.
      hparams: the hyper-parameters.
      axis: the clients of a round; it maps over those of one task at a time.

    Returns:
      The method as pure functions.
    """
    tasks = {task.name: task for task, _ in models}
    clients_per_task = hparams.num_clients // len(tasks)

    def start(model: core.SplitParams) -> Kept:
        if hparams.local.optimizer_state != 'kept':
            return Kept(model, ())
        return Kept(model, core.optimizer(hparams, jnp.float32(hparams.lr)).init(core.trainable(model)))

    def init(key: Array) -> core.State:
        common = init_models(key, models)
        clients = {name: trees.replicate(start(model), clients_per_task) for name, model in common.items()}
        return init_state(common, server=False, clients=clients)

    def round_(
        key: Array, state: core.State, federation: core.Federation, cohort: core.Cohort, k_s: Array
    ) -> tuple[core.State, core.Metrics]:
        lr = core.learning_rate(hparams, state.round)

        def train(task_model: TaskModel) -> tuple[Kept, core.Metrics]:
            name = task_model.task.name
            clients = state.clients[name]
            key_of_task, images, members = sampling.select_task(key, federation, cohort, list(tasks), name)
            inputs, weights = core.plan(key_of_task, state, images, members, hparams)

            def one(inputs: core.ClientInput, client: Kept) -> core.ClientOutput:
                loss = build_loss(task_model, views, hparams, inputs, images, pull=None)
                model, moments, *reported = core.local_sgd(loss, *client, core.optimizer(hparams, lr), inputs.steps)
                return core.ClientOutput((), Kept(model, moments), *reported)

            work = axis.map(one)(inputs, trees.gather(clients, inputs.id))
            clients = trees.scatter(clients, inputs.id, work.client_state, weights.weight, axis.all_gather)
            return clients, collect(work, weights, (), axis)[1]

        clients, measured = {}, {}
        for task_model in models:
            clients[task_model.task.name], measured[task_model.task.name] = train(task_model)
        return state.replace(round=state.round + 1, clients=clients), {'lr': lr, **metrics(measured)}

    def predict(state: core.State, images: Array) -> dict[str, tuple[Any, ...]]:
        def predict_clients(task_model: TaskModel) -> tuple[Any, ...]:
            one = partial(core.predict, task_model.model, views, images=images)
            outputs = jax.lax.map(one, state.clients[task_model.task.name].model)
            return tuple(jax.tree.map(lambda x, n=n: x[n], outputs) for n in range(clients_per_task))

        return {task_model.task.name: predict_clients(task_model) for task_model in models}

    return core.Algorithm(init, round_, predict, headline=next(iter(tasks)), tasks=tasks)


class Kept(NamedTuple):
    """The model and optimizer state that the clients of a task keep, leaves [N / T, ...]."""

    model: core.SplitParams
    optimizer: Any  # the optimizer's state; () with `local.optimizer_state` 'fresh'


# --- the record


# fmt: off
@dataclasses.dataclass(frozen=True)
class MFedOptions:
    """The keys of `config.mfed`."""

    weight: float = option(0.0001, at_least=0.0, help='lambda_0: weight of the distance between encoders in the first '
        'round; the paper gives no value; on scenes of digits, all larger values that we tried cost accuracy '
        '(docs/results.md)')
    growth: float = option(1.05, above=0.0, idle={'mfed.weight': 0}, help='rho: factor by which lambda grows from '
        'round to round ("an exponential growth trend"); the paper gives no value; 1: constant')
    max_weight: float = option(1.0, above=0.0, idle={'mfed.weight': 0}, help='largest lambda, beyond which it grows no '
        'further; the paper names no bound, and without one lambda is 3.9e6 after 500 rounds')
    penalty: str = option('squared', choices=('squared', 'norm'), idle={'mfed.weight': 0}, help='distance between '
        "encoder and mean encoder g in a client's loss: 'squared', lambda / 2 ||w - g||^2, whose gradient is that of "
        "the paper's proof | 'norm', lambda ||w - g||, its Eq. (6)")
# fmt: on


def check(flat: Flat) -> None:
    """Raises UserError for a setting that no method of dense tasks can use, or a lambda above its bound."""
    if flat['augment.supervised'] != 'weak':
        why = 'targets of dense tasks follow flips, crops, scales and rotations alone'
        raise UserError(f"config.augment.supervised='{flat['augment.supervised']}': {why}; use 'weak'")
    weight, most = flat.get('mfed.weight', 0.0), flat.get('mfed.max_weight', 1.0)  # `mfed_fl` has neither
    if weight > most:
        raise UserError(f'config.mfed.weight={weight} is above mfed.max_weight={most}, the bound of lambda; lower it')


CLIENTS_PER_TASK = 5  # in the paper
NEEDS = {'data.client_labels': -1, 'k_s': 0, 'augment.supervised': 'weak'}


def official(flat: Flat) -> dict[str, Any]:
    """Returns the settings of M-Fed's experiments (Zhou et al., 2025, Section 5.1), for M-Fed and its baselines.

    Data sets other than COCO get the values of PASCAL-Context. All clients are active, since the paper mentions no
    absent ones. It says nothing of optimizer, learning rate, batches, views and lambda, which stay those of the
    configuration. configs/pascal_context.py has those of published implementations of multi-task learning
    (docs/ledger.md).
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
    if clients := CLIENTS_PER_TASK * len(flat['data.tasks']):
        values |= {'federation.num_clients': clients, 'federation.num_active': clients}
    return values


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills a client's model and the encoder g down, and its model up. Without penalty, g stays at the server."""
    encoder = context.pieces.bottom_parameters if getattr(context.hparams.options, 'weight', 0) else 0
    pieces = [context.task_pieces[task] for task in np.atleast_1d(context.tasks)]
    whole = np.array([piece.whole_bytes for piece in pieces])
    work = np.array([piece.whole_work.train for piece in pieces])
    return costs.ClientCost(download=whole + encoder, upload=whole, step_work=context.hparams.batch_size * work)


def price_local(context: costs.CostContext) -> costs.ClientCost:
    """Bills the work of `m_fed` and no bytes, as nothing is sent."""
    return price(context)._replace(download=0, upload=0)


METHOD = Method(
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
        'lr': ranges.LR,
        'mfed.weight': ranges.log(1e-6, 1e-2),  # two decades to either side of the default; the paper gives no value
        'mfed.growth': ranges.linear(1.0, 1.1),  # from constant to twice the growth
    },
)
register(METHOD)
MFED_FL = dataclasses.replace(
    METHOD,
    name='mfed_fl',
    build=mfed_fl,
    title='FL per task',
    options=None,  # lambda_0 is 0
    group='',
    metrics={},
    look=Look('#33A0A0', 's', '--'),
    ranges={'lr': ranges.LR},
)
register(MFED_FL)
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
