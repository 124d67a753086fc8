"""Rounds in which clients train whole models: the server's steps, local training from broadcast to average.

A whole model is a `SplitParams` with an empty projection head (`init_state` without a queue). Each method defines
what a client does, `client(inputs, client_state, state, federation, lr)`. This module provides what all methods share:
which images a client reads, the loop of optimizer steps, the average, and what clients keep between their rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.core import rng, sampling, trees
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from semisfl_jax.core.state import (
    LocalPhase,
    ServerPhase,
    State,
    after_pre_rounds,
    predict,
    trainable,
    with_parameters,
)
from semisfl_jax.core.supervised import build_supervised
from semisfl_jax.core.teacher import pseudo_label_rates
from semisfl_jax.core.types import (
    LOCAL_CLIENTS,
    Array,
    ClientAxis,
    Cohort,
    Federation,
    LossValue,
    Metrics,
    Predict,
    Reported,
    Round,
    SplitModel,
    SplitParams,
    Views,
)


class ClientInput(NamedTuple):
    """The inputs of one client in one round. `plan` makes those of all clients at once, with a leading [A]."""

    id: Array  # [] int32
    key: Array  # of this client in this round
    steps: Array | int  # [] int32, its number of iterations
    rows: Array  # int32, rows of `client_images`: [T, B] for each of at most T iterations, or [S + S_l] for whole sets
    labeled: Array  # of the same shape, bool, whether the client knows the label
    visits: Array  # [] int32, its earlier rounds


class ClientWeights(NamedTuple):
    """The weights of the clients of a round."""

    weight: Array  # [A] float32, 1 for a participating client, 0 for one without images and for padding
    share: Array  # [A] float32, weight in the average: the same, or times its number of images
    candidates: Any = ()  # [A] float32, if clients may sit out: `weight` before that


class Batch(NamedTuple):
    """The images of one iteration of one client."""

    images: Array  # [B, H, W, C] uint8
    labels: Array  # [B] int32, the truth; where not `labeled`, training reads it only in `label_logits`
    labeled: Array  # [B] bool


class ClientOutput(NamedTuple):
    """The result of one client's round."""

    upload: Any  # averaged by the server
    client_state: Any  # the client's updated state, of the structure it was given
    means: dict[str, Array]  # losses and other numbers that are averaged over clients
    counts: dict[str, Array]  # counts of rows, summed over clients; metrics by the `rates` of `build_local`; or none
    participates: Any = ()  # [] bool, False: it has nothing to train on and sits out; () if no client ever does


# What a method has one client do in a round: its inputs, its row of `state.clients`, the server's state, federation, lr
ClientStep: TypeAlias = Callable[[ClientInput, Any, State, Federation, Array], ClientOutput]
# The loss of a client in iteration t []: parameters, which are differentiated and replace those of the student,
# student, companion, t -> the loss [], and: the student with updated BatchNorm statistics, means, counts
ClientLoss: TypeAlias = Callable[[SplitParams, SplitParams, Any, Array], LossValue]


def read(federation: Federation, inputs: ClientInput, t: Array) -> Batch:
    """The batch of iteration `t` of a client."""
    rows = inputs.rows[t]
    return Batch(federation.client_images[rows], federation.client_labels[rows], inputs.labeled[t])


def guessed_rows(hparams: HParams, batch: Batch) -> Array:
    """The rows of a batch that are trained on without their label, [B] bool.

    Of a client without labels these are all rows or, with `local.steps` 'longest', the last B_u
    (`sampling.client_rows`).
    """
    if hparams.local.steps != 'longest':
        return ~batch.labeled
    return ~batch.labeled & (jnp.arange(batch.labeled.shape[0]) >= hparams.labeled_rows)


def local_sgd(
    loss: ClientLoss,
    student: SplitParams,
    client_state: Any,
    tx: optax.GradientTransformation,
    steps: Array | int,
    companion: Any = (),
    follow: Callable[[Any, SplitParams], Any] = lambda companion, student: companion,
) -> tuple[SplitParams, Any, dict[str, Array], dict[str, Array]]:
    """The optimizer steps of one client; with 0 `steps`, nothing changes.

    `client_state` is the optimizer's from the client's last round, without arrays for a fresh one. `companion` is
    updated along with the student, such as a teacher: `follow` maps (companion, student after the step) to the new one.

    Returns:
      student, optimizer state (`client_state` if that has no arrays), means over the steps, sums of counts.
    """
    fresh = not jax.tree.leaves(client_state)

    def iteration(t: Array, training: Any) -> tuple[Any, Reported]:
        student, opt_state, companion = training
        parameters = trainable(student)
        gradient, (student, *reported) = jax.grad(loss, has_aux=True)(parameters, student, companion, t)
        updates, opt_state = tx.update(gradient, opt_state, parameters)
        student = with_parameters(student, optax.apply_updates(parameters, updates))
        return (student, opt_state, follow(companion, student)), tuple(reported)

    opt_state = tx.init(trainable(student)) if fresh else client_state
    (student, opt_state, _), means, counts = iterate(iteration, (student, opt_state, companion), steps)
    return student, client_state if fresh else opt_state, means, counts


def iterate(
    iteration: Callable[[Array, Any], tuple[Any, Reported]], start: Any, steps: Array | int
) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """`steps` times `iteration`: (t [], state) -> state, (means, counts), from the state `start`.

    Returns:
      state, means over the iterations, sums of counts.
    """

    @jax.named_scope('local_step')
    def step(t: Array, carry: tuple[Any, Reported]) -> tuple[Any, Reported]:
        state, sums = carry
        state, new = iteration(t, state)
        return state, jax.tree.map(jnp.add, sums, new)

    _, shapes = jax.eval_shape(iteration, jnp.int32(0), start)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    state, (means, counts) = jax.lax.fori_loop(0, steps, step, (start, zeros))
    return state, jax.tree.map(lambda x: x / jnp.maximum(steps, 1), means), counts


def init_clients(key: Array, model: SplitModel, hparams: HParams) -> Any:
    """The clients' state before the first round: with `optimizer_state` 'kept', their optimizers, leaves [N, ...].

    That takes N times the memory of the model, twice that with Adam, on every device.
    """
    if hparams.local.optimizer_state == 'fresh':
        return ()
    student = model.init(rng.fold(key, 'init'))._replace(proj={'params': {}})
    state = optimizer(hparams, jnp.float32(hparams.lr)).init(trainable(student))
    return trees.replicate(state, hparams.num_clients)


def build_local(
    client: ClientStep,
    hparams: HParams,
    axis: ClientAxis = LOCAL_CLIENTS,
    received: Callable[[State], Any] = lambda state: state.student,
    reads: str = 'batches',
    rates: Callable[[dict[str, Array]], Metrics] = pseudo_label_rates,
) -> LocalPhase:
    """Builds the clients' part of a round, from the broadcast to the average.

    A client of weight 0 in the cohort, or without an image to train on, does not participate: it is excluded from all
    means and keeps its state. The same holds for one that sits out (`ClientOutput.participates`), except that its
    `counts` are included. Each client has its own key, so the order of the cohort changes no draw.

    In the first `pre_rounds` rounds no client trains, and the metrics are NaN.

    `received` maps the state to the average if no client participates, of the structure of the uploads. A client
    `reads` 'batches' (`sampling.client_rows`) or 'sets' (`sampling.whole_sets`), as in `Method.reads`. `rates` are the
    metrics of the clients' summed counts.

    Returns:
      run(key, state, federation, cohort, lr []) -> averaged, clients, metrics. `averaged` is the mean of the uploads,
      uniform or weighted by images; `clients` is `state.clients` with the rows of the cohort replaced. The cohort
      contains the local clients.
    """

    def run(key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array) -> tuple[Any, Any, Metrics]:
        inputs, weights = plan(key, state, federation, cohort, hparams, reads)

        def one(inputs: ClientInput, client_state: Any) -> ClientOutput:
            if not hparams.local.epochs:  # the same for all: a loop of known length
                inputs = inputs._replace(steps=hparams.k_u)
            return client(inputs, client_state, state, federation, lr)

        work = axis.map(one)(inputs, trees.gather(state.clients, cohort.ids))
        if jax.tree.leaves(work.participates):
            weight, share = (all_of * work.participates for all_of in weights[:2])
            weights = ClientWeights(weight, share, candidates=weights.weight)
        averaged, metrics = collect(work, weights, received(state), axis, rates)
        clients = trees.scatter(state.clients, cohort.ids, work.client_state, weights.weight, axis.all_gather)
        return averaged, clients, metrics

    return after_pre_rounds(hparams.pre_rounds, run, lambda state: (received(state), state.clients))


def plan(
    key: Array, state: State, federation: Federation, cohort: Cohort, hparams: HParams, reads: str = 'batches'
) -> tuple[ClientInput, ClientWeights]:
    """The inputs and weights of the A local clients in a round, with a leading [A]. Of the state only `round` is read.

    `key` is the root key, `reads` as in `build_local`.
    """
    rows, labeled = sampling.rows(reads, key, federation, cohort, hparams.batches)
    steps = sampling.client_steps(federation, cohort, hparams.batches)
    weights = weigh(federation, cohort, hparams)
    round_key = rng.fold(key, 'local', state.round)
    keys = jax.vmap(lambda client: rng.fold(round_key, client))(cohort.ids)
    steps = jnp.where(weights.weight > 0, steps, 0)
    return ClientInput(cohort.ids, keys, steps, rows, labeled, cohort.participations), weights


def weigh(federation: Federation, cohort: Cohort, hparams: HParams) -> ClientWeights:
    """The weights [A] of the local clients of a cohort; those without images do not participate."""
    unlabeled, with_labels = federation.size[cohort.ids], federation.labeled_size[cohort.ids]
    images = sampling.images_held(unlabeled, with_labels, hparams.batch_size, hparams.labeled_rows)
    weight = cohort.weight * (images > 0)
    return ClientWeights(weight, weight * images if hparams.local.weighting == 'samples' else weight)


def collect(
    work: ClientOutput,
    weights: ClientWeights,
    otherwise: Any,
    axis: ClientAxis = LOCAL_CLIENTS,
    rates: Callable[[dict[str, Array]], Metrics] = pseudo_label_rates,
) -> tuple[Any, Metrics]:
    """The average of what the clients of a round upload, and the metrics of the round, scalars.

    Leaves of `work` and `weights` have a leading [A], of the local clients. `otherwise` is the average if no client
    participates, of the structure of an upload; `axis` and `rates` are as in `build_local`.
    """
    may_sit_out = bool(jax.tree.leaves(weights.candidates))
    candidates = weights.candidates if may_sit_out else weights.weight
    averaged = trees.weighted_mean(work.upload, weights.share, otherwise=otherwise, psum=axis.psum)
    means, counts, num_participating = axis.psum(
        (
            {name: jnp.sum(values * weights.weight) for name, values in work.means.items()},
            {name: jnp.sum(jnp.where(candidates > 0, values, 0)) for name, values in work.counts.items()},
            jnp.sum(weights.weight),
        )
    )
    metrics = {name: value / jnp.maximum(num_participating, 1.0) for name, value in means.items()}
    if may_sit_out:
        metrics['clients_sitting_out'] = 1.0 - num_participating / jnp.maximum(axis.psum(jnp.sum(candidates)), 1.0)
    return averaged, metrics | (rates(counts) if counts else {})


def forward(
    model: SplitModel, variables: SplitParams, images: Array, key: Array | None, train: bool, rows: Array | None = None
) -> tuple[Array, SplitParams]:
    """Logits [B, K] of normalized images [B, H, W, C], and the variables, in training with new BatchNorm statistics.

    `train` uses dropout, drawn with `key`, which may be None otherwise, and the statistics of the batch. `rows` [B]
    bool are the valid rows of a partial batch; None: all.
    """
    keys = (None, None) if key is None else (rng.fold(key, 'bottom'), rng.fold(key, 'top'))
    features, bottom = model.bottom(variables.bottom, images, keys[0], train, rows)
    logits, top = model.top(variables.top, features, keys[1], train, rows)
    return logits, SplitParams(bottom, top, variables.proj)


def build_server(model: SplitModel, views: Views, hparams: HParams, label_weight: float = 1.0) -> ServerPhase:
    """The server's part of a round: K_s steps of weighted cross-entropy (`build_supervised`), or nothing if K_s is 0
    and the server only averages.
    """
    if hparams.server_trains:
        return build_supervised(model, views, hparams, label_weight)
    return lambda key, state, federation, k_s, lr: (state, {})


def server_then_clients(
    hparams: HParams,
    server: ServerPhase,
    clients: LocalPhase,
    update: Callable[[State, Any, Federation], State] = lambda state, average, _: state.replace(student=average),
) -> Round:
    """A round of a method of whole models: K_s steps at the server, then the clients'; `update` makes the new state
    from the average of their uploads, which by default is the student."""

    def round_(key: Array, state: State, federation: Federation, cohort: Cohort, k_s: Array) -> tuple[State, Metrics]:
        lr = learning_rate(hparams, state.round)
        state, metrics = server(key, state, federation, k_s, lr)
        average, kept, client_metrics = clients(key, state, federation, cohort, lr)
        state = update(state.replace(round=state.round + 1, clients=kept), average, federation)
        return state, {'lr': lr, **metrics, **client_metrics}

    return round_


def predict_by(model: SplitModel, views: Views, *names: str) -> Predict:
    """predict(state, images [B, H, W, C] uint8) -> logits [B, K] of models of the state, such as 'student', by name."""
    return lambda state, images: {name: predict(model, views, getattr(state, name), images) for name in names}
