"""SemiFL (Diao et al., NeurIPS 2022): server and clients alternate; pseudo-labels are fixed per round; mixup."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import Flat, Look, Method
from semisfl_jax.algorithms.ranges import LR, THRESHOLD, linear, log
from semisfl_jax.algorithms.registry import register
from semisfl_jax.algorithms.semifl.client import train_client
from semisfl_jax.algorithms.semifl.options import Parts, SemiFL
from semisfl_jax.algorithms.semifl.statistics import build_statistics
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from semisfl_jax.core.state import trainable, with_parameters
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
from semisfl_jax.models import SplitModel


class AtServer(NamedTuple):
    """`State.server`."""

    momentum: optax.OptState  # of the SGD steps toward the clients' average
    trained: SplitParams | tuple[()]  # with 'server_first', the model after the server's steps of this round


def semifl(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds SemiFL.

    One round: K_s steps of cross-entropy at the server, whose model goes to the cohort. Each client labels all its
    images once, in a weak view, with the model it received. FIX is the set of images whose label reaches the threshold,
    MIX an equal number of draws from all images, labeled regardless of confidence; without a confident image the client
    sits out. It trains on strong views of FIX and on mixtures of weak views of FIX and MIX: K_u iterations, but at most
    `semifl.max_passes` over FIX, in one endless sequence of full batches over both sets. With `local.epochs` it makes
    that many passes, like the loaders of the authors' code: the last batch of each may be short, and MIX is redrawn
    at every access. The server's passes over its labels then end the same way. The server moves to the average of the
    models by a step of SGD, with momentum across rounds (`semifl.global_momentum`).

    BatchNorm's statistics are recomputed whenever a model is about to label or to be evaluated, and never otherwise.
    With `semifl.order` 'clients_first', as in the authors' code, the clients start from the model of the previous
    round, and the server trains on their average. With 'server_first' the server trains first, and the round ends with
    the average. The headline model is the one at the end of the round; if that is the average, the model after the
    server's steps is also evaluated. With `local.optimizer_state` 'kept', as in the authors' code, clients and server
    continue with their optimizer states.

    Arguments as in `semisfl`; the model is not split.
    """
    options = hparams.options
    hparams = dataclasses.replace(hparams, clip_norm=options.clip_norm, short_batches=hparams.local.epochs > 0)
    server = core.build_server(model, views, hparams)
    statistics = build_statistics(model, views, options.batch_norm_data, options.pass_batch_size)
    parts = Parts(model, views, hparams, statistics, optax.sgd(1.0, momentum=options.global_momentum))
    local = core.build_local(partial(train_client, parts), hparams, axis, reads='sets')
    local = core.skip_pre_rounds(hparams, local)

    def round_(
        key: Array, state: core.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[core.State, Metrics]:
        def refresh(state: core.State) -> core.State:
            return state.replace(student=statistics(key, state.student, federation))

        def clients(state: core.State) -> tuple[core.State, Metrics]:
            trained = local(key, state, federation, cohort, lr)
            return step_to_average(parts, key, state, federation, *trained), trained[-1]

        lr = learning_rate(hparams, state.round)
        if parts.server_first:
            state, metrics = server(key, state, federation, k_s, lr)
            state = refresh(state)
            state = state.replace(server=state.server._replace(trained=state.student))
            state, client_metrics = clients(state)
        else:
            if not hparams.pre_rounds:  # later rounds start with the statistics from the previous evaluation
                state = jax.lax.cond(state.round == 0, refresh, lambda same: same, state)
            state, client_metrics = clients(state)
            state, metrics = server(key, state, federation, k_s, lr)
            state = refresh(state)
        return state.replace(round=state.round + 1), {'lr': lr, **metrics, **client_metrics}

    return Algorithm(partial(init, parts), round_, partial(predict, parts), headline='student')


def init(parts: Parts, key: Array) -> core.State:
    """The state before the first round."""
    hparams = parts.hparams
    client_state = core.init_clients(key, parts.model, hparams)
    state = core.init_state(key, parts.model, teacher=False, clients=client_state)
    if hparams.local.optimizer_state == 'kept':
        state = state.replace(opt_state=optimizer(hparams, jnp.float32(hparams.lr)).init(trainable(state.student)))
    trained = jax.tree.map(jnp.copy, state.student) if parts.server_first else ()
    return state.replace(server=AtServer(parts.global_step.init(trainable(state.student)), trained))


def predict(parts: Parts, state: core.State, images: Array) -> dict[str, Array]:
    """Logits [B, K] of the model at the end of the round and, if that is an average, of the one before it."""
    predictions = {'student': core.predict(parts.model, parts.views, state.student, images)}
    if not parts.server_first:
        return predictions
    return predictions | {'after_server': core.predict(parts.model, parts.views, state.server.trained, images)}


def step_to_average(
    parts: Parts,
    key: Array,
    state: core.State,
    federation: Federation,
    average: SplitParams,
    client_state: Any,
    metrics: Metrics,
) -> core.State:
    """The server's step of SGD toward the clients' average, whose difference is the gradient; none if all sat out.

    `average`, `client_state` and `metrics` are those that `build_local`'s function returned.
    """

    def step() -> tuple[SplitParams, optax.OptState]:
        start = trainable(state.student)
        gradient = jax.tree.map(jnp.subtract, start, trainable(average))
        updates, momentum = parts.global_step.update(gradient, state.server.momentum)
        student = with_parameters(state.student, optax.apply_updates(start, updates))
        return parts.statistics(key, student, federation) if parts.server_first else student, momentum

    any_trained = metrics['clients_sitting_out'] < 1  # False in warm-up rounds, where it is NaN
    student, momentum = jax.lax.cond(any_trained, step, lambda: (state.student, state.server.momentum))
    return state.replace(student=student, server=state.server._replace(momentum=momentum), clients=client_state)


def official(flat: Flat) -> dict[str, Any]:
    """SemiFL as run by its authors' code.

    100 clients, 10 active, clients first; 5 client epochs over confident images in batches of 10; 5 server epochs
    on weak views, in batches of 250 or, with up to 1,000 labels, of 10; both keep their momentum; lr decays from 0.03
    to 0 over 800 rounds. Strong views use its own RandAugment; SVHN is not flipped. A Dirichlet partition draws over
    clients per class, again until every client has 10 images.
    """
    labels = flat['data.num_labeled'] - max(flat['data.client_labels'], 0)
    batch = 250 if labels > 1000 else 10
    values = {
        'federation.num_clients': 100,
        'federation.num_active': 10,
        'data.labeled_split': 'balanced',
        'rounds': 800,
        'lr_rounds': 800,
        'k_s': 5 * -(-labels // batch),
        'k_s_rule': 'fixed',
        'pre_rounds': 0,
        'server_batch_size': batch,
        'batch_size': 10,
        'local.epochs': 5,
        'local.weighting': 'uniform',
        'local.optimizer_state': 'kept',
        'optimizer': 'sgd',
        'lr': 0.03,
        'lr_min': 0.0,
        'momentum': 0.9,
        'nesterov': True,
        'weight_decay': 5e-4,
        'threshold': 0.95,
        'augment.randaugment': 'semifl',
        'augment.operations': 2,
        'augment.cutout': 0,
        'augment.flip': flat['data.name'] != 'svhn_cropped',
        'augment.crop': 0.125,
        'model.batch_norm_variance': 'unbiased',  # PyTorch's
        'augment.supervised': 'weak',
        'semifl.order': 'clients_first',
        'semifl.mixup_alpha': 0.75,
        'semifl.clip_norm': 1.0,
        'semifl.global_momentum': 0.5,
    }
    if flat['federation.partition'] == 'dirichlet':
        values['federation.partition'] = 'dirichlet_class'
    return values


def price(context: costs.CostContext) -> costs.ClientCost:
    """One model down, its parameters up. A client first labels all its images; without a confident one it sits out.

    If BatchNorm statistics are computed over the images of all clients, every client receives the server's parameters
    once a round and sends statistics back, and the active clients receive the combined ones. The time of clients
    outside the cohort is not counted, nor is the second pass, for evaluation. Recorded are the share of clients sitting
    out and the means of the others' iterations and, with local epochs, images, so every client is billed the mean.
    """
    h, pieces, metrics = context.hparams, context.pieces, context.metrics
    work, statistics = pieces.whole_work, pieces.statistics
    parameters = context.whole_bytes - statistics
    everywhere = h.options.batch_norm_data == 'all' and statistics > 0
    trains: float = 1.0
    rows: float | np.ndarray = h.batch_size  # images in a step
    if h.local.epochs:  # the last step of a pass may have fewer
        rows = h.local.epochs * np.asarray(context.images) / np.maximum(context.steps, 1)
    if metrics is not None and context.survivors:
        trains = round((1 - float(metrics['clients_sitting_out'])) * context.survivors) / context.survivors
        # of the iterations planned, `context.steps`, a client makes fewer when few of its images are confident
        made = metrics['client_images'] if h.local.epochs else h.batch_size * metrics['client_steps']
        rows = float(made) / max(float(np.mean(context.steps)), 1.0)
    passes = 2 if everywhere else 1
    return costs.ClientCost(
        download=context.whole_bytes,
        setup_upload=statistics if everywhere else 0,
        setup_work=passes * np.asarray(context.images) * work.forward,
        upload=trains * parameters,
        step_work=trains * rows * 2 * work.train,
        inactive_download=parameters if everywhere else 0,
        inactive_upload=statistics if everywhere else 0,
    )


def check(flat: Flat) -> None:
    """Raises UserError for keys that contradict each other."""
    if flat['local.epochs'] and flat['semifl.max_passes'] != SemiFL.max_passes:
        raise UserError(
            f'config.semifl.max_passes={flat["semifl.max_passes"]} has no effect with '
            f'local.epochs={flat["local.epochs"]}, which sets the number of passes; leave it at {SemiFL.max_passes}'
        )
    if flat['data.client_labels'] > 0 and flat['federation.mu'] > 0:
        raise UserError(
            f'config.data.client_labels={flat["data.client_labels"]}: clients of semifl have no labels; use 0 (or '
            'federation.mu=0, which ignores them)'
        )
    if flat['data.residency'] == 'host' and flat['semifl.batch_norm_data'] == 'all':
        raise UserError(
            "config.semifl.batch_norm_data='all' needs the images of all clients on the device, but "
            "data.residency='host' puts only those of the active clients there; use batch_norm_data='server' or "
            "residency='device'"
        )


METHOD = register(
    Method(
        name='semifl',
        build=semifl,
        title='SemiFL',
        source='Diao et al., SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training, '
        'NeurIPS 2022',
        options=SemiFL,
        uses=('pseudo-labels', 'local', 'kept optimizers', 'pre-rounds'),  # no 'sampling': passes over confident images
        keeps_optimizers=True,
        reads='sets',
        check=check,
        official=official,
        price=price,
        metrics={
            'loss_fix': 'part of `loss_local`: strong views of confident images',
            'loss_mix': 'part of `loss_local`: mixtures',
            'clients_sitting_out': 'share of active clients without a confident image; they do not train. Losses are '
            'means over the others, 0 when there are none',
            'client_steps': 'iterations of a client that does not sit out, on average',
            'client_images': 'with `local.epochs`: images that such a client trains on, on average: its confident '
            'ones, once in each pass. The last batch of a pass may be short, so this is less than `client_steps` times '
            '`batch_size`',
        },
        look=Look('#E69F00', 'v', (0, (6.0, 1.2, 1.0, 1.2, 1.0, 1.2))),
        ranges={
            'lr': LR,
            'threshold': THRESHOLD,
            'semifl.mixup_alpha': log(0.1, 1.0),  # from hardly mixed to equally likely weights; MixMatch's is 0.75
            'semifl.global_momentum': linear(0.0, 0.9),  # from none to that of its steps; 0.5 in its code
        },
        # so that no client sits out or takes fewer steps
        variants={'': {'threshold': 0.0, 'semifl.max_passes': 0}},
    )
)
