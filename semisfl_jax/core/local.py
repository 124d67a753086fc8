"""Rounds in which clients train whole models: the server's steps, then local training from broadcast to average.

A whole model is a `SplitParams` with an empty projection head (`init_state` without a queue). Each method defines what
a client does, `client(inputs, client_state, state, federation, lr)`. This module provides what methods share: which
images a client reads, the loop of optimizer steps, the average, and what clients keep between their rounds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from semisfl_jax.core import rng, sampling, trees
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from semisfl_jax.core.state import LocalPhase, ServerPhase, State, after_pre_rounds, predict, trainable, with_parameters
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
    """The inputs of one client in one round; `plan` makes those of all clients at once, with a leading [A]."""

    id: Array  # [] int32
    key: Array  # for this client in this round
    steps: Array | int  # [] int32, its number of iterations
    rows: Array  # int32, rows of `client_images`: [T, B] for each of at most T iterations, or [S + S_l] for whole sets
    labeled: Array  # bool, the shape of `rows`: the client knows the label
    participations: Array  # [] int32, earlier rounds in which the client has drawn batches


class ClientWeights(NamedTuple):
    """The weights of the clients of a round."""

    weight: Array  # [A] float32, 1 for a participating client, 0 for one without images and for padding
    share: Array  # [A] float32, weight in the average: `weight`, or `weight` times the client's number of images
    candidates: Any = ()  # [A] float32, if clients may sit out: `weight` before any did


class Batch(NamedTuple):
    """The images of one iteration of one client."""

    images: Array  # [B, H, W, C] uint8
    labels: Array  # [B] int32, the truth; where `labeled` is False, training reads it only in `label_logits`
    labeled: Array  # [B] bool


class ClientOutput(NamedTuple):
    """The result of one client's round."""

    upload: Any  # averaged by the server
    client_state: Any  # the client's updated state, with the structure of the state it received
    means: dict[str, Array]  # losses and further numbers that are averaged over clients
    counts: dict[str, Array]  # row counts, summed over clients for the `rates` of `build_local`; may be empty
    participates: Any = ()  # [] bool, False: it has nothing to train on and sits out; () if no client ever does


# What one client does in a round: its inputs, its row of `state.clients`, the server's state, federation, lr -> output
ClientStep: TypeAlias = Callable[[ClientInput, Any, State, Federation, Array], ClientOutput]
# A client's loss in iteration t []: parameters (differentiated; they replace the student's), student, teacher, t -> the
# loss [], and: the student with updated BatchNorm statistics, means, counts
ClientLoss: TypeAlias = Callable[[SplitParams, SplitParams, Any, Array], LossValue]


def read(federation: Federation, inputs: ClientInput, t: Array) -> Batch:
    """Reads the batch of iteration `t` of a client."""
    rows = inputs.rows[t]
    return Batch(federation.client_images[rows], federation.client_labels[rows], inputs.labeled[t])


def guessed_rows(hparams: HParams, batch: Batch) -> Array:
    """Marks the rows of a batch that are trained on without their label.

    A client without labels guesses all of its rows or, with `local.steps` 'longest', the last B_u
    (`sampling.client_rows`).

    Args:
      hparams: `local.steps` and `labeled_rows` are read.
      batch: a client's batch.

    Returns:
      [B] bool.
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
    teacher: Any = (),
    update_teacher: Callable[[Any, SplitParams], Any] = lambda teacher, student: teacher,
) -> tuple[SplitParams, Any, dict[str, Array], dict[str, Array]]:
    """Runs the optimizer steps of one client.

    Args:
      loss: the client's loss in an iteration.
      student: the received model.
      client_state: the optimizer's state from the client's last round; one without arrays starts afresh.
      tx: the optimizer.
      steps: [] int32; with 0, nothing changes.
      teacher: anything that follows the student, such as a teacher; `loss` sees it.
      update_teacher: maps (teacher, student after the step) to the new teacher.

    Returns:
      student, optimizer state (`client_state` if that has no arrays), means over the steps, sums of counts.
    """
    fresh = not jax.tree.leaves(client_state)

    def iteration(t: Array, training: Any) -> tuple[Any, Reported]:
        student, opt_state, teacher = training
        parameters = trainable(student)
        gradient, (student, *reported) = jax.grad(loss, has_aux=True)(parameters, student, teacher, t)
        updates, opt_state = tx.update(gradient, opt_state, parameters)
        student = with_parameters(student, optax.apply_updates(parameters, updates))
        return (student, opt_state, update_teacher(teacher, student)), tuple(reported)

    opt_state = tx.init(trainable(student)) if fresh else client_state
    (student, opt_state, _), means, counts = iterate(iteration, (student, opt_state, teacher), steps)
    return student, client_state if fresh else opt_state, means, counts


def iterate(
    iteration: Callable[[Array, Any], tuple[Any, Reported]], start: Any, steps: Array | int
) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """Repeats an iteration.

    Args:
      iteration: (t [], state) -> state, (means, counts).
      start: the state before the first iteration.
      steps: [] int32, the number of iterations.

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
    """Builds the clients' state before the first round: with `optimizer_state` 'kept', their optimizers.

    That takes N times the memory of the model, twice that with Adam, on every device.

    Args:
      key: the root key.
      model: the model.
      hparams: the options of the optimizer.

    Returns:
      Leaves [N, ...]; () if optimizers start afresh in every round.
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

    Args:
      client: what one client does.
      hparams: the hyper-parameters.
      axis: the clients.
      received: maps the state to the average if no client participates, with the structure of the uploads.
      reads: what a client reads, as in `Method.reads`: 'batches' (`sampling.client_rows`) or 'sets'
        (`sampling.whole_sets`).
      rates: maps the clients' summed counts to metrics.

    Returns:
      run(key, state, federation, cohort, lr []) -> averaged, clients, metrics. `averaged` is the mean of the uploads,
      uniform or weighted by images; `clients` is `state.clients` with the rows of the cohort replaced. The cohort
      contains the local clients.
    """

    def run(key: Array, state: State, federation: Federation, cohort: Cohort, lr: Array) -> tuple[Any, Any, Metrics]:
        inputs, weights = plan(key, state, federation, cohort, hparams, reads)

        def one(inputs: ClientInput, client_state: Any) -> ClientOutput:
            if not hparams.local.epochs:  # every client takes k_u steps: a loop of known length
                inputs = inputs._replace(steps=hparams.k_u)
            return client(inputs, client_state, state, federation, lr)

        work = axis.map(one)(inputs, trees.gather(state.clients, cohort.ids))
        if jax.tree.leaves(work.participates):
            weight, share = (weighting * work.participates for weighting in weights[:2])
            weights = ClientWeights(weight, share, candidates=weights.weight)
        averaged, metrics = collect(work, weights, received(state), axis, rates)
        clients = trees.scatter(state.clients, cohort.ids, work.client_state, weights.weight, axis.all_gather)
        return averaged, clients, metrics

    return after_pre_rounds(hparams.pre_rounds, run, lambda state: (received(state), state.clients))


def plan(
    key: Array, state: State, federation: Federation, cohort: Cohort, hparams: HParams, reads: str = 'batches'
) -> tuple[ClientInput, ClientWeights]:
    """Prepares the inputs and weights of the A local clients in a round.

    Args:
      key: the root key.
      state: only `round` is read.
      federation: the tables of images are read, not the images.
      cohort: the local clients.
      hparams: the hyper-parameters.
      reads: as in `build_local`.

    Returns:
      Inputs and weights, with a leading [A].
    """
    rows, labeled = sampling.rows(reads, key, federation, cohort, hparams.batches)
    steps = sampling.client_steps(federation, cohort, hparams.batches)
    weights = weigh(federation, cohort, hparams)
    round_key = rng.fold(key, 'local', state.round)
    keys = jax.vmap(lambda client: rng.fold(round_key, client))(cohort.ids)
    steps = jnp.where(weights.weight > 0, steps, 0)
    return ClientInput(cohort.ids, keys, steps, rows, labeled, cohort.participations), weights


def weigh(federation: Federation, cohort: Cohort, hparams: HParams) -> ClientWeights:
    """Computes the weights of the local clients; those without images do not participate.

    Args:
      federation: only the sizes are read.
      cohort: the local clients.
      hparams: `batch_size`, `labeled_rows` and `local.weighting` are read.

    Returns:
      Weights [A].
    """
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
    """Averages what the clients of a round upload, and computes the metrics of the round.

    Args:
      work: the outputs of the local clients, leaves [A, ...].
      weights: their weights, leaves [A].
      otherwise: the average if no client participates, with the structure of an upload.
      axis: the clients.
      rates: maps the clients' summed counts to metrics.

    Returns:
      The average, and the metrics, scalars.
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
    model: SplitModel,
    variables: SplitParams,
    images: Array,
    key: Array | None,
    train: bool,
    rows: Array | None = None,
    targets: Any = None,
) -> tuple[Any, SplitParams]:
    """Runs a whole model.

    Args:
      model: the model.
      variables: its variables.
      images: [B, H, W, C], normalized.
      key: for dropout; may be None if not in training.
      train: use dropout and the statistics of the batch.
      rows: [B] bool, the valid rows of a partial batch; None: all.
      targets: of a task of objects, in training.

    Returns:
      Logits [B, K] or, with targets, losses; and the variables, in training with new BatchNorm statistics.
    """
    keys = (None, None) if key is None else (rng.fold(key, 'bottom'), rng.fold(key, 'top'))
    features, bottom = model.bottom(variables.bottom, images, keys[0], train, rows)
    given = () if targets is None else (targets,)
    logits, top = model.top(variables.top, features, keys[1], train, rows, *given)
    return logits, SplitParams(bottom, top, variables.proj)


def build_server(model: SplitModel, views: Views, hparams: HParams, label_weight: float = 1.0) -> ServerPhase:
    """Builds the server's part of a round: K_s steps of cross-entropy, or nothing if K_s is 0 and it only averages.

    Args:
      model: the model.
      views: `supervised` and `normalize` are read.
      hparams: the hyper-parameters.
      label_weight: weight of the cross-entropy.

    Returns:
      The phase, from `build_supervised` unless K_s is 0.
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
    """Builds a round of a method of whole models: K_s steps at the server, then the clients' part.

    Args:
      hparams: the hyper-parameters.
      server: the server's part, from `build_server`.
      clients: the clients' part, from `build_local`.
      update: maps (state, average of the uploads, federation) to the new state; by default the average is the new
        student.

    Returns:
      The round.
    """

    def round_(key: Array, state: State, federation: Federation, cohort: Cohort, k_s: Array) -> tuple[State, Metrics]:
        lr = learning_rate(hparams, state.round)
        state, metrics = server(key, state, federation, k_s, lr)
        average, client_states, client_metrics = clients(key, state, federation, cohort, lr)
        state = update(state.replace(round=state.round + 1, clients=client_states), average, federation)
        return state, {'lr': lr, **metrics, **client_metrics}

    return round_


def predict_by(model: SplitModel, views: Views, *names: str) -> Predict:
    """Builds `Algorithm.predict` from models in the state.

    Args:
      model: the model.
      views: `normalize` is read.
      *names: fields of the state, such as 'student'.

    Returns:
      predict(state, images [B, H, W, C] uint8) -> {name: logits [B, K]}.
    """
    return lambda state, images: {name: predict(model, views, getattr(state, name), images) for name in names}
