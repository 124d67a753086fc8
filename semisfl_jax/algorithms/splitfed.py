"""SplitFed (Thapa et al., AAAI 2022): supervised split federated learning on clients with labels."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Flat, Look, Method, option, protocol, ranges, register
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import objectives, rng, trees


def splitfed(model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis) -> core.Algorithm:
    """Builds SplitFed.

    In a round each client of the cohort trains on batches of B of its labeled images, for K_u batches or `local.epochs`
    passes: features go up, their gradient comes down, and each side steps its own optimizer, which starts fresh in
    every round. Clients without labels sit out, and the server has no images. The two versions differ at the server:

        v1: a copy of the top for every client; at the end of the round bottoms and tops are averaged. Except for
            communication this is FedAvg on the whole model.
        v2: one top, which serves the clients sequentially in a new random order each round and keeps its optimizer
            state between them; the bottoms, all started from the same weights, are averaged at the end.

    The authors' scripts create a new server optimizer for every batch; this implementation does not.

    Args:
      model: the model, cut between clients and server.
      views: augmentations and normalization; batches use the supervised view.
      hparams: the hyper-parameters, with `SplitFed` as options.
      axis: the clients of a round; v2 needs all of them to be local.

    Returns:
      The method as pure functions. Its headline model is the student.
    """
    objective = objectives.supervised(model, views)

    def build_loss(inputs: core.ClientInput, federation: core.Federation) -> core.ClientLoss:
        def loss(parameters: core.SplitParams, student: core.SplitParams, _: Any, t: Array) -> core.LossValue:
            batch = core.read(federation, inputs, t)
            return objective(parameters, student, student, batch, rng.fold(inputs.key, t), jnp.float32(0))

        return loss

    def train_with_own_top(
        inputs: core.ClientInput, client_state: Any, state: core.State, federation: core.Federation, lr: Array
    ) -> core.ClientOutput:
        loss, tx = build_loss(inputs, federation), core.optimizer(hparams, lr)
        return core.ClientOutput(*core.local_sgd(loss, state.student, client_state, tx, inputs.steps))

    def train_in_turn(
        key: Array, state: core.State, federation: core.Federation, cohort: core.Cohort, lr: Array
    ) -> tuple[core.SplitParams, tuple[()], core.Metrics]:
        sides = dict.fromkeys(('client', 'server'), core.optimizer(hparams, lr))
        tx = optax.partition(sides, core.SplitParams('client', 'server', 'server'))
        inputs, part = core.plan(key, state, federation, cohort, hparams)
        draws = jax.vmap(lambda client: jax.random.bits(rng.fold(client, 'turn')))(inputs.key)
        inputs, part = trees.gather((inputs, part), jnp.argsort(draws))

        def serve(
            server: tuple[core.Variables, Any], inputs: core.ClientInput
        ) -> tuple[tuple[core.Variables, Any], core.ClientOutput]:
            top, momentum = server
            student = state.student._replace(top=top)
            fresh = tx.init(core.trainable(student))
            client_state = fresh._replace(inner_states={**fresh.inner_states, 'server': momentum})
            loss = build_loss(inputs, federation)
            student, client_state, *reported = core.local_sgd(loss, student, client_state, tx, inputs.steps)
            return (student.top, client_state.inner_states['server']), core.ClientOutput(student.bottom, (), *reported)

        first = state.student.top, tx.init(core.trainable(state.student)).inner_states['server']
        (top, _), work = jax.lax.scan(serve, first, inputs)
        bottom, metrics = core.collect(work, part, otherwise=state.student.bottom)
        return state.student._replace(bottom=bottom, top=top), (), metrics

    clients = core.build_local(train_with_own_top, hparams, axis) if hparams.options.version == 'v1' else train_in_turn
    round_ = core.server_then_clients(hparams, core.build_server(model, views, hparams), clients)
    init = partial(core.init_state, model=model, teacher=False)
    return core.Algorithm(init, round_, core.predict_by(model, views, 'student'), headline='student')


# --- the record


# fmt: off
@dataclasses.dataclass(frozen=True)
class SplitFed:
    """The keys of `config.splitfed`."""

    version: str = option('v1', choices=('v1', 'v2'), help="'v1': one top per client, averaged | 'v2': one top, which "
        'serves the clients one after another')
# fmt: on


# The settings of the authors' scripts, the same for both versions. They train a ResNet-18 on skin images that are
# flipped, shifted and slightly rotated. Here model and data come from the configuration, and the weak view replaces
# their augmentation.
OFFICIAL = protocol(clients=5, active=5, rounds=200, lr=1e-4, momentum=0.9, batch_size=256, epochs=1) | {
    'data.client_labels': -1,
    'lr_rounds': 200,
    'k_s': 0,
    'optimizer': 'adam',
    'local.weighting': 'uniform',
    'model.batch_norm_variance': 'unbiased',  # PyTorch's
}


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills the bottom down and up, and in every iteration features and labels up and their gradient down."""
    h, pieces = context.hparams, context.pieces
    batch = h.batch_size * pieces.features
    return costs.ClientCost(
        download=pieces.bottom,
        step_upload=batch + costs.NUMBER * h.batch_size,
        step_download=batch,
        upload=pieces.bottom,
        step_work=h.batch_size * pieces.bottom_work.train,
        server_work=h.batch_size * pieces.top_work.train,
        order='sequential' if h.options.version == 'v2' else 'synchronized',
    )


def sequential(flat: Flat) -> str:
    """Returns why clients cannot be computed in parallel; '' if they can."""
    why = "splitfed.version='v2' trains one client after another, so all devices but one would wait"
    return why if flat['splitfed.version'] == 'v2' else ''


def check(flat: Flat) -> None:
    """Raises UserError if version 2 would compute several clients at once."""
    for key, value in {'federation.client_chunk': 0, 'federation.client_map': 'auto'}.items():
        if sequential(flat) and flat[key] != value:
            why = "splitfed.version='v2' trains one client after another"
            raise UserError(f'config.{key}={flat[key]}: {why}; leave it at {value}')


METHOD = Method(
    name='splitfed',
    build=splitfed,
    title='SplitFed',
    source='Thapa et al., SplitFed: When Federated Learning Meets Split Learning, AAAI 2022',
    options=SplitFed,
    uses=('cut', 'local', 'sampling'),
    needs={'data.client_labels': -1, 'k_s': 0, 'pre_rounds': 0},
    server='none',
    labels_alone=lambda flat: True,
    own_top=True,
    by_images=True,
    sequential=sequential,
    check=check,
    official=lambda flat: OFFICIAL,
    price=price,
    look=Look('#882255', '>', ':'),
    ranges={'lr': ranges.LR, 'weight_decay': ranges.WEIGHT_DECAY},
    variants={
        'v1': {},
        # Already sequential: no client map or chunks.
        'v2': {'splitfed.version': 'v2', 'federation.client_map': 'auto', 'federation.client_chunk': 0},
    },
)
register(METHOD)
