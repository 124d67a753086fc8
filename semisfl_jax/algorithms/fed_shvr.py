"""Fed-SHVR (Wang et al., arXiv 2111.00010): sharpened labels, normalized averaging and variance reduction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from semisfl_jax import core, costs
from semisfl_jax.algorithms.method import Flat, Look, Method
from semisfl_jax.algorithms.options import option
from semisfl_jax.algorithms.protocols import of_fed_shvr
from semisfl_jax.algorithms.ranges import LR, WEIGHT, linear
from semisfl_jax.algorithms.registry import register
from semisfl_jax.algorithms.sharpened import confidence_rows, sharpened_rows
from semisfl_jax.core import losses, rng, sampling, trees
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer, plain_steps
from semisfl_jax.core.objectives import Rule
from semisfl_jax.core.state import trainable, with_parameters
from semisfl_jax.core.teacher import hard_labels, label_logits
from semisfl_jax.core.types import (
    LOCAL_CLIENTS,
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
from semisfl_jax.models import SplitModel


@dataclasses.dataclass(frozen=True)
class FedShvr:
    """`config.fed_shvr`, for Fed-SHVR, Fed-SH and Fed-SVR."""

    alpha0: float = option(1.0, 'weight of the cross-entropy with pseudo-labels, after the ramp', at_least=0)
    ramp_rounds: int = option(
        25,
        'rounds in which `alpha0` rises from 0 in the first one to its value, linearly; 0: no ramp. 25 are the 50 '
        'epochs of the paper',
        at_least=0,
    )
    alpha1: float = option(
        0.75,
        'regularization of the pseudo-labels, which are predictions to the power of `alpha0` / `alpha1`; 0: one-hot',
        at_least=0,
    )
    alpha2: float = option(0.1, 'weight of the confidence penalty on predictions for unlabeled images', at_least=0)


class Form(NamedTuple):
    """What sets Fed-SHVR apart from its two ablations."""

    corrected: bool  # clients correct their gradients by d_k
    normalized: bool  # the server averages updates per step (FedNova), not models


class Upload(NamedTuple):
    """What the server averages."""

    update: SplitParams  # theta - theta_k of the parameters; divided by `steps` if normalized
    steps: Array  # [], tau_k
    statistics: Any  # BatchNorm's, of each piece


def build(
    form: Form,
    model: SplitModel,
    views: Views,
    hparams: HParams,
    axis: ClientAxis = LOCAL_CLIENTS,
    objective_in: Callable[[Array], core.Objective] | None = None,
) -> Algorithm:
    """Builds Fed-SHVR or an ablation of it.

    One round: K_s steps of cross-entropy at the server, if it has labels; theta goes to the cohort; each client labels
    its unlabeled images with theta, once, and takes tau_k steps of SGD on its objective (`sharpened`), whose
    gradients g are corrected to g + d_k; the server averages.

    Algorithm 1 defines d_k by recursion, from the last two models of the server and the client's last result. That is
    the same as

      d_k = c - c_k in Fed-SHVR, with c = sum_k w_k c_k;  d_k = sum_j w_j tau_j c_j / tau_k - c_k in Fed-SVR,

    where c_k is the mean gradient of the client's last round, before correction, and w_k its share of all images. So
    clients keep one model each, c_k (`State.clients`), and the server the sum (`State.server`). Both start at 0: the
    first round is not corrected. With all clients in every round this is Algorithm 1, except that its first round,
    which changes nothing, is left out. A client that is absent or fails keeps its c_k, so sum_k w_k d_k remains 0
    (Fed-SVR: sum_k w_k tau_k d_k), as in SCAFFOLD; the paper has no such clients.

    With momentum, tau_k is the number of plain steps that move a model as far (`hparams.plain_steps`), as in FedNova.

    The headline model is the averaged model. `Algorithm.client_losses` are the terms of the paper's F (Eq. 5a), with
    alpha0 after the ramp, so that rounds compare.

    Args:
      form: the method.
      model: the model, run whole.
      views: augmentations and normalization; clients train on weak views.
      hparams: settings.
      axis: the clients of a round.
      objective_in: round [] -> what clients minimize in it; None: the paper's objective.
    """
    in_round = objective_in or partial(sharpened_objective, model, views, hparams)
    server = core.build_server(model, views, hparams)

    def client(
        inputs: core.ClientInput, control: Any, state: core.State, federation: Federation, lr: Array
    ) -> core.ClientOutput:
        start, steps = trainable(state.student), plain_steps(hparams, inputs.steps)
        correction = _correction(form, state.server, control, steps)
        objective = in_round(state.round)

        def loss(parameters: SplitParams, student: SplitParams, _: Any, t: Array) -> LossValue:
            batch = core.read(federation, inputs, t)
            return objective(parameters, student, state.student, batch, rng.fold(inputs.key, t), state.round)

        tx = optax.chain(_add(correction), optimizer(hparams, lr))
        student, _, means, counts = core.local_sgd(loss, state.student, (), tx, inputs.steps)
        update = jax.tree.map(jnp.subtract, start, trainable(student))
        if form.corrected:
            means['correction_norm'] = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(correction)))
            control = _mean_gradient(update, lr * steps, correction, control)
        if form.normalized:
            update = jax.tree.map(lambda x: x / jnp.maximum(steps, 1.0), update)
        return core.ClientOutput(Upload(update, steps, _statistics(student)), control, means, counts)

    def received(state: core.State) -> Upload:
        nothing = jax.tree.map(jnp.zeros_like, trainable(state.student))
        return Upload(nothing, jnp.zeros(()), _statistics(state.student))

    local = core.skip_pre_rounds(hparams, core.build_local(client, hparams, axis, received), received)

    def init(key: Array) -> core.State:
        state = core.init_state(key, model, teacher=False)
        if not form.corrected:
            return state
        nothing = jax.tree.map(jnp.zeros_like, trainable(state.student))
        return state.replace(clients=trees.replicate(nothing, hparams.num_clients), server=nothing)

    def round_(
        key: Array, state: core.State, federation: Federation, cohort: Cohort, k_s: Array
    ) -> tuple[core.State, Metrics]:
        lr = learning_rate(hparams, state.round)
        state, metrics = server(key, state, federation, k_s, lr)
        average, clients, client_metrics = local(key, state, federation, cohort, lr)
        mean_steps = average.steps if form.normalized else 1.0
        parameters = jax.tree.map(lambda x, update: x - mean_steps * update, trainable(state.student), average.update)
        student = _with_statistics(with_parameters(state.student, parameters), average.statistics)
        control = _average_control(form, clients, federation, hparams) if form.corrected else ()
        state = state.replace(round=state.round + 1, student=student, clients=clients, server=control)
        return state, {'lr': lr, **metrics, **client_metrics}

    predict = core.predict_by(model, views, 'student')

    def client_losses(state: core.State, images: Array, labels: Array) -> tuple[Array, Array]:
        logits = predict(state, images)['student']
        received = label_logits(hparams, logits, labels)
        return losses.cross_entropy_rows(logits, labels), _unlabeled_rows(hparams, received, logits)

    return Algorithm(init, round_, predict, headline='student', client_losses=client_losses)


def sharpened_objective(model: SplitModel, views: Views, hparams: HParams, round_index: Array) -> core.Objective:
    """CE of labeled images plus `sharpened_rows` of the others, in weak views. The received model is the labeler."""
    ramp_rounds = hparams.options.ramp_rounds
    risen = jnp.minimum(round_index / ramp_rounds, 1.0) if ramp_rounds else 1.0
    return core.semi_supervised(model, core.plain(views), hparams, sharpened(hparams, risen))


def sharpened(hparams: HParams, risen: Array | float) -> Rule:
    """The mean of the terms of unlabeled images; `risen` as in `_unlabeled_rows`."""

    def rule(received: Array, logits: Array, weight: Array) -> tuple[Array, Array, Array]:
        labels, every = hard_labels(received, 0.0)
        counted = every if hparams.pseudo_labels != 'none' else ~every
        return losses.row_mean(_unlabeled_rows(hparams, received, logits, risen), weight), labels, counted

    return rule


def _unlabeled_rows(hparams: HParams, received: Array, logits: Array, risen: Array | float = 1.0) -> Array:
    """The terms of unlabeled images [B], for the received model's and the trained model's logits [B, K]; `risen` is the
    share of alpha0 that the ramp has reached."""
    options = hparams.options
    if hparams.pseudo_labels == 'none':  # the penalty on confidence needs no label
        return options.alpha2 * confidence_rows(logits)
    return sharpened_rows(received, logits, options.alpha0 * risen, options.alpha1, options.alpha2)


def _correction(form: Form, average: SplitParams, control: SplitParams, steps: Array) -> Any:
    """d_k, of the structure of the parameters; () if there is none."""
    if not form.corrected:
        return ()
    scale = 1.0 if form.normalized else 1.0 / jnp.maximum(steps, 1.0)
    return jax.tree.map(lambda c, c_k: scale * c - c_k, average, control)


def _add(correction: Any) -> optax.GradientTransformation:
    """Adds the correction to every gradient."""
    if not jax.tree.leaves(correction):
        return optax.identity()
    return optax.stateless(lambda gradient, parameters: jax.tree.map(jnp.add, gradient, correction))


def _mean_gradient(update: SplitParams, scale: Array, correction: SplitParams, control: SplitParams) -> SplitParams:
    """c_k, from the `update` theta - theta_k over `scale` = lr tau_k; `control` where nothing could move."""
    return jax.tree.map(
        lambda x, d, old: jnp.where(scale > 0, x / jnp.where(scale > 0, scale, 1.0) - d, old),
        update,
        correction,
        control,
    )


def _average_control(form: Form, controls: Any, federation: Federation, hparams: HParams) -> SplitParams:
    """sum_k w_k c_k, or sum_k w_k tau_k c_k if models are averaged, over all N clients; w_k sum to 1."""
    everyone = jnp.arange(hparams.num_clients)
    cohort = Cohort(everyone, jnp.ones(everyone.shape), jnp.zeros_like(everyone))
    share = core.weigh(federation, cohort, hparams).share
    share = share / jnp.maximum(jnp.sum(share), 1.0)
    if not form.normalized:
        share = share * jax.vmap(partial(plain_steps, hparams))(
            sampling.client_steps(federation, cohort, hparams.batches)
        )
    return jax.tree.map(lambda c: jnp.tensordot(share, c, axes=1), controls)


def _statistics(variables: SplitParams) -> tuple[Any, ...]:
    return tuple({name: value for name, value in piece.items() if name != 'params'} for piece in variables)


def _with_statistics(variables: SplitParams, statistics: tuple[Any, ...]) -> SplitParams:
    return SplitParams(*({**piece, **moved} for piece, moved in zip(variables, statistics, strict=True)))


def fed_shvr(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds Fed-SHVR; see `build`."""
    return build(Form(corrected=True, normalized=True), model, views, hparams, axis)


def official(flat: Flat) -> dict[str, Any]:
    """Fed-SHVR's own experiments: `protocols.of_fed_shvr`, with its alpha1 and alpha2.

    alpha0 rises during the first 50 epochs, which are 25 rounds; the paper does not give its last value
    (docs/ledger.md).
    """
    return of_fed_shvr(flat) | {'fed_shvr.alpha1': 0.75, 'fed_shvr.alpha2': 0.1, 'fed_shvr.ramp_rounds': 25}


def price(context: costs.CostContext) -> costs.ClientCost:
    """One model down, one up. A client predicts each of its unlabeled images once a round.

    With all clients in every round and no labels at the server, a client knows the corrections from two models that it
    received one after the other (Algorithm 1, Eq. 15). If some may be absent, or if the server trains between the two,
    it also sends its average gradient, as large as the parameters.
    """
    cost = costs.whole_model(context, pseudo_labels=False)
    known = context.everyone and not context.hparams.server_trains
    control = 0 if known else context.whole_bytes - context.pieces.statistics
    return cost._replace(
        download=context.whole_bytes + control, setup_work=context.unlabeled * context.pieces.whole_work.forward
    )


def price_uncorrected(context: costs.CostContext) -> costs.ClientCost:
    """As `price`, without corrections."""
    return price(context)._replace(download=context.whole_bytes)


def check(flat: Flat) -> None:
    """Raises UserError for an optimizer whose steps are not sums of gradients."""
    if flat['optimizer'] != 'sgd':
        raise UserError(
            f"config.optimizer='{flat['optimizer']}': {flat['algorithm']} divides each client's update by its number "
            "of steps, which is meaningful only for SGD; use 'sgd'"
        )


METHOD = register(
    Method(
        name='fed_shvr',
        build=fed_shvr,
        title='Fed-SHVR',
        source='Wang et al., Federated Semi-Supervised Learning with Class Distribution Mismatch, arXiv 2111.00010',
        options=FedShvr,
        uses=('pseudo-labels', 'local', 'steps', 'pre-rounds', 'sampling'),
        server='optional',
        steps='longest',
        by_images=True,
        counts_all=True,
        check=check,
        official=official,
        price=price,
        metrics={'correction_norm': 'norm of the correction $d_k$ of gradients, mean over clients'},
        look=Look('#117733', 'p', '-'),
        ranges={
            'lr': LR,
            'fed_shvr.alpha0': WEIGHT,
            'fed_shvr.alpha1': linear(0.0, 1.0),  # from one-hot labels to plain predictions
            'fed_shvr.alpha2': linear(0.0, 0.5),  # from no penalty to five times its 0.1
        },
    )
)
