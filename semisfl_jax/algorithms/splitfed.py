"""SplitFed (Thapa et al., AAAI 2022): supervised split federated learning on clients with labels."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from semisfl_jax import costs, phases, rng, trees
from semisfl_jax.algorithms.method import Flat, Look, Method, option, register
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import HParams, learning_rate, optimizer
from semisfl_jax.models import SplitModel
from semisfl_jax.phases.objective import supervised
from semisfl_jax.phases.state import trainable
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


@dataclasses.dataclass(frozen=True)
class SplitFed:
    """`config.splitfed`."""

    version: str = option(
        'v1', "'v1': a top for each client, averaged | 'v2': one top, client after client", choices=('v1', 'v2')
    )


def splitfed(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds SplitFed.

    In a round each client of the cohort trains on batches of B of its labeled images, K_u of them or `local.epochs`
    passes: features up, their gradient down, and each side steps its own optimizer, new in every round. Clients
    without labels sit out, and the server has no images of its own. The two versions differ in the server's side:

        v1: a copy of the top for every client; at the end of the round bottoms and tops are averaged. But for what
            travels this is FedAvg on the whole model.
        v2: one top, which serves client after client in an order drawn afresh each round, and keeps its optimizer on
            the way; the bottoms, all of which started from the same one, are averaged at the end.

    The scripts of its authors make the server's optimizer anew for every batch, which is not followed here.

    Args:
      model: the split model; its projection head is left out.
      views: augmentations and normalization; batches take the supervised view.
      hparams: settings.
      axis: the clients of a round. That of v2 has all of them here.
    """
    objective = supervised(model, views)

    def train(
        inputs: phases.ClientInput,
        student: SplitParams,
        client_state,
        sgd: optax.GradientTransformation,
        data: Federation,
    ):
        """The steps of one client: both sides, the optimizer, and what was measured."""

        def loss(parameters, student, _, t):
            batch = phases.read(data, inputs, t)
            return objective(parameters, student, student, batch, rng.fold(inputs.key, t), jnp.float32(0))

        return phases.local_sgd(loss, student, client_state, sgd, inputs.steps)

    def with_its_own_top(
        inputs: phases.ClientInput, client_state, state: phases.State, federation: Federation, lr: Array
    ):
        return phases.ClientOutput(*train(inputs, state.student, client_state, optimizer(hparams, lr), federation))

    def one_after_another(key: Array, state: phases.State, federation: Federation, cohort: Cohort, lr: Array):
        own = optimizer(hparams, lr)
        sgd = optax.partition({'client': own, 'server': own}, SplitParams('client', 'server', 'server'))
        inputs, part = phases.plan(key, state, federation, cohort, hparams)
        draws = jax.vmap(lambda client: jax.random.bits(rng.fold(client, 'turn')))(inputs.key)
        inputs, part = trees.gather((inputs, part), jnp.argsort(draws))

        def serve(server, inputs: phases.ClientInput):
            top, momentum = server
            student = state.student._replace(top=top)
            fresh = sgd.init(trainable(student))
            client_state = fresh._replace(inner_states={**fresh.inner_states, 'server': momentum})
            student, client_state, *found = train(inputs, student, client_state, sgd, federation)
            return (student.top, client_state.inner_states['server']), phases.ClientOutput(student.bottom, (), *found)

        first = state.student.top, sgd.init(trainable(state.student)).inner_states['server']
        (top, _), work = jax.lax.scan(serve, first, inputs)
        bottom, metrics = phases.collect(work, part, otherwise=state.student.bottom)
        return state.student._replace(bottom=bottom, top=top), (), metrics

    clients = (
        phases.build_local(with_its_own_top, hparams, axis) if hparams.options.version == 'v1' else one_after_another
    )

    def round_(
        key: Array, state: phases.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[phases.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        student, _, metrics = clients(key, state, federation, cohort, lr)
        return state.replace(round=state.round + 1, student=student), {'lr': lr, **metrics}

    def init(key: Array) -> phases.State:
        return phases.init_state(key, model, memory=(), projection=False, teacher=False)

    def predict(state: phases.State, images: Array) -> dict[str, Array]:
        return {'student': phases.predict(model, views, state.student, images)}

    return Algorithm(init, round_, predict, headline='student')


def official(flat: Flat) -> dict[str, Any]:
    """SplitFed as the scripts of its authors run it, both versions alike.

    5 clients, all active and with all labels, one epoch a round in batches of 256, Adam with 1e-4, 200 rounds, uniform
    averages. Theirs is a ResNet-18 on skin images that are flipped, shifted and turned a little; here model and data
    are those of the configuration, and the weak view stands for that.
    """
    return {
        'federation.num_clients': 5,
        'federation.num_active': 5,
        'data.client_labels': -1,
        'rounds': 200,
        'lr_rounds': 200,
        'k_s': 0,
        'pre_rounds': 0,
        'optimizer': 'adam',
        'nesterov': False,
        'lr': 1e-4,
        'lr_min': 1e-4,
        'weight_decay': 0.0,
        'batch_size': 256,
        'local.epochs': 1,
        'local.weighting': 'uniform',
        'model.batch_norm_variance': 'unbiased',  # PyTorch's
        'augment.supervised': 'weak',
    }


def price(context: costs.CostContext) -> costs.ClientCost:
    """The bottom down and up; per iteration features and labels up and the gradient down. Version 2 takes turns."""
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
    """Why clients cannot be computed at the same time."""
    if flat['splitfed.version'] == 'v1':
        return ''
    return "splitfed.version='v2' trains one client after another, so all devices but one would wait"


def check(flat: Flat) -> None:
    """Raises UserError where version 2 is asked to compute several clients at once."""
    if not sequential(flat):
        return
    for key, value in (('federation.client_chunk', 0), ('federation.client_map', 'auto')):
        if flat[key] != value:
            raise UserError(
                f"config.{key}={flat[key]}: splitfed.version='v2' trains one client after another; leave it at {value}"
            )


METHOD = register(
    Method(
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
        official=official,
        price=price,
        look=Look('#882255', '>', ':'),
        variants={
            'v1': {},
            # One client after another as it is.
            'v2': {'splitfed.version': 'v2', 'federation.client_map': 'auto', 'federation.client_chunk': 0},
        },
    )
)
